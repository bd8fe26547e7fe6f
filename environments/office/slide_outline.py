"""The outline of a slide deck, as it would be shown."""

from __future__ import annotations

import random
from typing import Any
from xml.sax.saxutils import escape

from environments.base import Draft
from environments.deliverables import CITIES, Deliverables, value
from environments.office.writing import OFFICE, kind, package, rels
from environments.task import Task

_MAIN = "http://schemas.openxmlformats.org/presentationml/2006/main"
_DRAW = "http://schemas.openxmlformats.org/drawingml/2006/main"
TOPICS = (
    "Results",
    "Outlook",
    "Risks & mitigations",
    "Hiring",
    "Budget",
    "Roadmap",
    "Customers",
    "Next steps",
    "Team",
    "Q&A",
)


class SlideOutline(Deliverables):
    """File names say nothing about the order, hidden slides and footers do not count, bullets have levels."""

    id = "office/slide_outline"
    domain = "office"
    skills = ("presentations", "parsing")

    def draw(self, rng: random.Random, level: int) -> Draft:
        slides = []
        for topic in rng.sample(TOPICS, 3 + 2 * level):
            depth = 0
            bullets: list[list[Any]] = []
            for _ in range(rng.randint(1, 3 + level)):
                depth = rng.randint(0, min(depth + 1, level)) if bullets else 0
                bullets.append(
                    [
                        depth,
                        rng.choice(
                            (
                                f"{rng.choice(CITIES)} grew by {rng.randint(2, 40)} %",
                                f"Open: {rng.randint(2, 99)} cases <30 days",
                                "To be decided",
                            )
                        ),
                    ]
                )
            notes = rng.choice(("", f"Mention {rng.choice(CITIES)}.", f"Skip if late; {rng.randint(2, 9)} minutes"))
            slides.append(
                {
                    "title": topic,
                    "bullets": bullets,
                    "notes": notes if level >= 2 else "",
                    "hidden": level >= 2 and rng.random() < 0.25,
                }
            )
        files = rng.sample(range(1, 40), len(slides))
        wanted = [{k: s[k] for k in ("title", "bullets", "notes")} for s in slides if not s["hidden"]]
        text = (
            "deck.pptx is a presentation (python3 has only its standard library here). Write outline.json: a list "
            "with one object for each slide in the order in which they are shown, without hidden slides, with title "
            "(text of the title placeholder), bullets (the paragraphs of the body placeholder that have text, each a "
            "list [level, text], the "
            'outermost level being 0) and notes (the text of the slide\'s notes body, "" if there is none). Other '
            "shapes do not count. Then answer `done`."
        )
        return Draft(text, "done", {"slides": slides, "files": files, "wanted": {"outline.json": value(wanted)}})

    def files(self, task: Task) -> dict[str, str | bytes]:
        parts, kinds, targets = {}, {"ppt/presentation.xml": kind("pptx", "presentation.main")}, {}
        rng = random.Random(task.info["files"][0])
        for number, (file, slide) in enumerate(zip(task.info["files"], task.info["slides"], strict=True), 1):
            name = f"slides/slide{file}.xml"
            shapes = [
                _shape("title", [(0, slide["title"])], rng),
                _shape("body", slide["bullets"], rng),
                _shape("ftr", [(0, "Internal")], rng),
            ]
            rng.shuffle(shapes)
            shown = ' show="0"' if slide["hidden"] else ""
            parts[f"ppt/{name}"] = _slide("sld", shapes, shown)
            kinds[f"ppt/{name}"] = kind("pptx", "slide")
            targets[f"rId{number}"] = ("slide", name)
            if slide["notes"]:
                notes = f"notesSlides/notesSlide{40 - file}.xml"
                parts[f"ppt/{notes}"] = _slide(
                    "notes", [_shape("sldNum", [(0, str(number))], rng), _shape("body", [(0, slide["notes"])], rng)]
                )
                kinds[f"ppt/{notes}"] = kind("pptx", "notesSlide")
                parts[f"ppt/slides/_rels/slide{file}.xml.rels"] = rels({"rId1": ("notesSlide", f"../{notes}")})
        listed = "".join(f'<p:sldId id="{255 + n}" r:id="rId{n}"/>' for n in range(1, len(targets) + 1))
        parts["ppt/presentation.xml"] = (
            f'<p:presentation xmlns:p="{_MAIN}" xmlns:r="{OFFICE}"><p:sldIdLst>{listed}</p:sldIdLst></p:presentation>'
        )
        parts["ppt/_rels/presentation.xml.rels"] = rels(dict(sorted(targets.items(), key=lambda t: t[1])))
        return {"deck.pptx": package(dict(sorted(parts.items())), "ppt/presentation.xml", kinds)}


def _slide(tag: str, shapes: list[str], shown: str = "") -> str:
    tree = f"<p:cSld><p:spTree>{''.join(shapes)}</p:spTree></p:cSld>"
    return f'<p:{tag} xmlns:p="{_MAIN}" xmlns:a="{_DRAW}"{shown}>{tree}</p:{tag}>'


def _shape(place: str, lines: list[Any], rng: random.Random) -> str:
    """A placeholder; its text is cut into two runs, and an empty paragraph follows."""
    body = ""
    for level, text in lines:
        at = rng.randint(1, len(text))
        runs = "".join(f"<a:r><a:t>{escape(t)}</a:t></a:r>" for t in (text[:at], text[at:]))
        body += f'<a:p>{f"""<a:pPr lvl="{level}"/>""" if level else ""}{runs}</a:p>'
    return f'<p:sp><p:nvSpPr><p:nvPr><p:ph type="{place}"/></p:nvPr></p:nvSpPr><p:txBody>{body}<a:p/></p:txBody></p:sp>'

"""Word-processing documents (.docx) that a policy wrote: paragraphs as text, read within bounds."""

from __future__ import annotations

from rewards.packages import Element, local, read_package, xml_root

MAX_PARAGRAPHS = 5000


def paragraphs(root: Element) -> list[tuple[str, str]]:
    """(style, text) of each paragraph in order, those of tables too; deleted text is left out, how text is cut into
    runs does not matter."""
    found = []
    for element in root.iter():
        if local(element) == "p":
            found.append((_style(element), paragraph_text(element)))
            if len(found) > MAX_PARAGRAPHS:
                return []
    return found


def paragraph_text(element: Element) -> str:
    """The text of runs, with tabs and breaks."""
    shown = {"tab": "\t", "br": "\n", "cr": "\n"}
    pieces = (e.text or "" if local(e) == "t" else shown.get(local(e), "") for e in element.iter())
    return "".join(pieces)


def _style(paragraph: Element) -> str:
    for element in paragraph.iter():
        if local(element) == "pStyle":
            return next((v for k, v in element.attrib.items() if k.endswith("}val")), "")
    return ""


def read_document(data: bytes | None) -> list[tuple[str, str]] | None:
    """Paragraphs of the body, or None where it is no document within the bounds."""
    parts = None if data is None else read_package(data)
    root = None if parts is None else xml_root(parts.get("word/document.xml"))
    return None if root is None or local(root) != "document" else paragraphs(root)

"""Office packages (zip files of XML parts) that a policy wrote, read within bounds: hostile files give None.

No document type declarations (so no entities), no encryption, no paths, bounded entries, sizes and depth.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import Any
from xml.etree import ElementTree

Element = ElementTree.Element

MAX_FILE = 2_000_000
"""Bytes of a package; those of our tasks have some ten thousand."""
MAX_PARTS = 200
MAX_TOTAL = 4_000_000
"""Bytes of all parts unpacked: a bomb is given up when it passes this, whatever its directory claims."""
MAX_DEPTH = 100
"""Nested elements; real documents have some twenty."""
MAX_ELEMENTS = 60_000
"""Elements of a part; it bounds what readers do that look into each element below each."""
_CHUNK = 1 << 14
"""Characters parsed between two looks at the depth."""


def read_package(data: bytes) -> dict[str, bytes] | None:
    """Parts by name, or None where it is no plain zip file within the bounds or names a part twice."""
    if len(data) > MAX_FILE:
        return None
    parts: dict[str, bytes] = {}
    left = MAX_TOTAL
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_PARTS:
                return None
            for entry in entries:
                if entry.is_dir():
                    continue
                if entry.filename in parts or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    return None
                with archive.open(entry) as part:
                    content = part.read(left + 1)
                left -= len(content)
                if left < 0:
                    return None
                parts[entry.filename] = content
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, NotImplementedError):
        return None  # the ways in which zipfile says that a file is broken or encrypted
    return parts


def xml_root(data: bytes | None) -> Element | None:
    """The root of an XML part in UTF-8 without a document type, or None."""
    if data is None:
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        return None
    parser: Any = ElementTree.XMLPullParser(("start", "end"))
    root: Element | None = None
    depth = count = 0
    try:
        for at in range(0, len(text), _CHUNK):
            parser.feed(text[at : at + _CHUNK])
            for event, element in parser.read_events():
                root = element if root is None else root
                depth += 1 if event == "start" else -1
                count += event == "start"
                if depth > MAX_DEPTH or count > MAX_ELEMENTS:
                    return None
        parser.close()
    except (ElementTree.ParseError, ValueError, LookupError):
        return None
    return root


def local(element: Element) -> str:
    """The tag without its namespace."""
    return element.tag.rpartition("}")[2]


def attribute(element: Element, name: str) -> str | None:
    """An attribute by its name without namespace."""
    return next((v for k, v in element.attrib.items() if k.rpartition("}")[2] == name), None)


def related(parts: dict[str, bytes], owner: str) -> dict[str, str]:
    """Relationship id -> part name of what a part (`xl/workbook.xml`) refers to; external targets are left out."""
    folder, _, name = owner.rpartition("/")
    root = xml_root(parts.get(f"{folder}/_rels/{name}.rels" if folder else f"_rels/{name}.rels"))
    found = {}
    for item in () if root is None else root:
        target, key = item.get("Target") or "", item.get("Id")
        if key is None or item.get("TargetMode") == "External":
            continue
        steps = target.split("/") if target.startswith("/") else [*folder.split("/"), *target.split("/")]
        path: list[str] = []
        for step in steps:
            if step == "..":
                path = path[:-1]
            elif step not in ("", "."):
                path.append(step)
        found[key] = "/".join(path)
    return found

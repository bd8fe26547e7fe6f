"""Write encoder and decoder of a binary record format; both are compared byte for byte."""

from __future__ import annotations

import random
from typing import Any

from environments.base import Draft
from environments.code.program import Program
from environments.task import Task

KINDS = ("u8", "u16", "u32", "i16", "i32", "varint", "signed", "text", "list", "flags", "optional", "pairs")
WORDS = (
    "id",
    "age",
    "score",
    "label",
    "title",
    "count",
    "level",
    "speed",
    "notes",
    "parts",
    "mode",
    "delta",
    "owner",
    "tags",
)


class Codec(Program):
    """`encode(record)` gives hex, `decode(hex)` the record; damaged bytes of every kind must be refused."""

    id = "code/codec"
    skills = ("binary", "programming")

    def draw(self, rng: random.Random, level: int) -> Draft:
        kinds = rng.sample(KINDS, 3 + 2 * level)
        spec = {
            "fields": [[n, k] for n, k in zip(rng.sample(WORDS, len(kinds)), kinds, strict=True)],
            "magic": rng.randrange(1, 256),
            "big": rng.random() < 0.5,
            "high_first": rng.random() < 0.5,
            "sum": rng.choice(("xor", "sum8", "fletcher", "crc8")),
            "poly": rng.choice((0x07, 0x1D, 0x31, 0x2F)),
            "terminated": rng.random() < 0.3,
        }
        text = (
            "Write solution.py with `encode(record)` and `decode(data)` for the message format below. `encode` takes a "
            "dict and returns the message as lowercase hex; `decode` takes hex (either case) and returns the dict, and "
            "raises ValueError for anything that `encode` could not have produced (odd or wrong hex, wrong magic or "
            "checksum, bytes missing or left over, a number in a longer form than needed, values outside of their "
            f"range, invalid UTF-8).\n\n{_words(spec)}\n\n`encode` may trust its input. Standard library of Python 3 "
            "only. Answer `done`."
        )
        return Draft(text, None, {"name": "both", "spec": spec, "seed": rng.getrandbits(32)})

    def cases(self, task: Task) -> list[Any]:
        """Records to encode, and messages to decode: right ones and such with one fault behind a right checksum."""
        spec, rng = task.info["spec"], random.Random(task.info["seed"])
        cases: list[Any] = []
        for _ in range(30):
            record = _record(rng, spec)
            data = bytearray.fromhex(self.reference(["encode", record], spec))
            cases += [["encode", record], ["decode", data.hex().upper()]]
            body = data[:-2] if spec["sum"] == "fletcher" else data[:-1]
            at = rng.randrange(len(body))
            fault = rng.randrange(5)
            if fault == 0:
                body[at] ^= 1 << rng.randrange(8)
            elif fault == 1:
                del body[at:]
            elif fault == 2:
                body.insert(at, rng.choice((0, 0x80, 0xFF)))
            elif fault == 3:
                del body[at]
            cases.append(["decode", self.reference(["seal", body.hex()], spec)])
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            cases.append(["decode", data.hex()])
        cases += [["decode", self.reference(["seal", b.hex()], spec)] for b in self._faults(spec, _record(rng, spec))]
        odd = ("", "0", "zz", data.hex()[:2] + " " + data.hex()[2:])
        return [*cases, *(["decode", text] for text in odd)]

    def _faults(self, spec: dict[str, Any], record: dict[str, Any]) -> list[bytes]:
        """Messages without checksum, each with one fault of a kind that chance would seldom make."""
        size = 2 if spec["sum"] == "fletcher" else 1
        parts = []
        for name, kind in spec["fields"]:
            alone = self.reference(["encode", {name: record[name]}], spec | {"fields": [[name, kind]]})
            parts.append(bytes.fromhex(alone)[1:-size])
        magic, whole = bytes([spec["magic"]]), b"".join(parts)
        out = [bytes([spec["magic"] ^ 1]) + whole, magic + whole + b"\0", magic + whole[:-1], magic]
        for at, (_, kind) in enumerate(spec["fields"]):
            part, wrong = parts[at], b""
            if kind in ("varint", "signed"):  # a group of zeros more than needed
                wrong = b"\x80" + part if spec["high_first"] else part[:-1] + bytes([part[-1] | 0x80, 0])
            elif kind == "optional":
                wrong = b"\2" + part[1:]
            elif kind == "flags":
                wrong = bytes([part[0] | 0x20])
            elif kind == "text":
                wrong = b"\xff\0" if spec["terminated"] else b"\1\xff"
            if wrong:
                out.append(b"".join([magic, *parts[:at], wrong, *parts[at + 1 :]]))
        return out

    @staticmethod
    def reference(args: Any, spec: Any) -> Any:
        order: Any = "big" if spec["big"] else "little"
        widths = {"u8": 1, "u16": 2, "u32": 4, "i16": 2, "i32": 4}

        def check(body: bytes) -> bytes:
            a = b = 0
            for byte in body:
                if spec["sum"] == "xor":
                    a ^= byte
                elif spec["sum"] == "sum8":
                    a = (a + byte) % 256
                elif spec["sum"] == "fletcher":
                    a = (a + byte) % 255
                    b = (b + a) % 255
                else:
                    a ^= byte
                    for _ in range(8):
                        a = (a << 1 ^ spec["poly"]) & 0xFF if a & 0x80 else a << 1
            return bytes([a, b]) if spec["sum"] == "fletcher" else bytes([a])

        def varint(n: int) -> bytes:
            groups = [n & 127]
            while n := n >> 7:
                groups.append(n & 127)
            if spec["high_first"]:
                groups.reverse()
            return bytes([g | 128 for g in groups[:-1]] + groups[-1:])

        def text(value: str) -> bytes:
            data = value.encode()
            return data + b"\0" if spec["terminated"] else varint(len(data)) + data

        def write(kind: str, value: Any) -> bytes:
            if kind in widths:
                return value.to_bytes(widths[kind], order, signed=kind[0] == "i")
            if kind == "varint":
                return varint(value)
            if kind == "signed":
                return varint(value * 2 if value >= 0 else -value * 2 - 1)
            if kind == "text":
                return text(value)
            if kind == "list":
                return varint(len(value)) + b"".join(write("i16", v) for v in value)
            if kind == "flags":
                return bytes([sum(1 << n for n, v in enumerate(value) if v)])
            if kind == "optional":
                return b"\0" if value is None else b"\1" + varint(value)
            return varint(len(value)) + b"".join(text(k) + write("signed", value[k]) for k in sorted(value))

        def fail(why: str) -> ValueError:
            return ValueError(why)

        if args[0] == "seal":
            body = bytes.fromhex(args[1])
            return (body + check(body)).hex()
        if args[0] == "encode":
            body = bytes([spec["magic"]]) + b"".join(write(k, args[1][n]) for n, k in spec["fields"])
            return (body + check(body)).hex()
        if any(c not in "0123456789abcdefABCDEF" for c in args[1]) or len(args[1]) % 2:
            raise fail("hex")
        data = bytes.fromhex(args[1])
        size = len(check(b""))
        body, at = data[:-size], 1
        if len(data) <= size or check(body) != data[-size:] or body[0] != spec["magic"]:
            raise fail("frame")

        def take(count: int) -> bytes:
            nonlocal at
            if at + count > len(body):
                raise fail("short")
            at += count
            return body[at - count : at]

        def number() -> int:
            groups = []
            while True:
                byte = take(1)[0]
                groups.append(byte & 127)
                if byte < 128:
                    break
            if not spec["high_first"]:
                groups.reverse()
            if len(groups) > 1 and groups[0] == 0:
                raise fail("long form")
            n = 0
            for group in groups:
                n = n << 7 | group
            if n >= 1 << 64:
                raise fail("range")
            return n

        def zigzag() -> int:
            n = number()
            return n // 2 if n % 2 == 0 else -(n // 2) - 1

        def string() -> str:
            nonlocal at
            if not spec["terminated"]:
                return take(number()).decode()
            end = body.find(b"\0", at)
            if end < 0:
                raise fail("no end")
            value = take(end - at)
            at += 1
            return value.decode()

        def read(kind: str) -> Any:
            if kind in widths:
                return int.from_bytes(take(widths[kind]), order, signed=kind[0] == "i")
            if kind == "varint":
                return number()
            if kind == "signed":
                return zigzag()
            if kind == "text":
                return string()
            if kind == "list":
                count = number()
                if count > len(body):
                    raise fail("short")
                return [read("i16") for _ in range(count)]
            if kind == "flags":
                byte = take(1)[0]
                if byte >= 32:
                    raise fail("flags")
                return [bool(byte >> n & 1) for n in range(5)]
            if kind == "optional":
                mark = take(1)[0]
                if mark > 1:
                    raise fail("mark")
                return number() if mark else None
            pairs: dict[str, int] = {}
            last = None
            for _ in range(number()):
                key = string()
                if last is not None and key <= last:
                    raise fail("order")
                pairs[key] = zigzag()
                last = key
            return pairs

        record = {n: read(k) for n, k in spec["fields"]}
        if at != len(body):
            raise fail("left over")
        return record

    def program(self, task: Task) -> str:
        both = super().program(task)
        return (
            both + "\ndef encode(record):\n    return both('encode', record)\n\ndef decode(data):\n    return "
            "both('decode', data)\n"
        )

    runner = """
import solution
def run(case):
    try:
        return {"value": {"encode": solution.encode, "decode": solution.decode}[case[0]](case[1])}
    except Exception as error:
        return {"error": "ValueError" if isinstance(error, ValueError) else type(error).__name__}
json.dump([run(case) for case in cases["cases"]], out)
"""


def _words(spec: dict[str, Any]) -> str:
    order = "most" if spec["big"] else "least"
    text = (
        "its UTF-8 bytes and a zero byte"
        if spec["terminated"]
        else "the number of its UTF-8 bytes as varint, then the bytes"
    )
    kinds = {
        **{f"u{n}": f"unsigned integer of {n // 8} byte(s), {order} significant byte first" for n in (8, 16, 32)},
        **{f"i{n}": f"two's complement integer of {n // 8} bytes, {order} significant byte first" for n in (16, 32)},
        "varint": "an unsigned varint (below)",
        "signed": "an integer n from -2**63 to 2**63 - 1 as varint of 2n if n >= 0, else of -2n - 1",
        "text": f"a string: {text}",
        "list": "a list of integers: their number as varint, then each as two's complement of 2 bytes, "
        f"{order} significant byte first",
        "flags": "a list of 5 booleans in one byte, the first in the lowest bit; the other bits are 0",
        "optional": "None as byte 0, or byte 1 and an unsigned varint",
        "pairs": f"a dict of strings to integers: the number of entries as varint, then the entries in ascending "
        f"order of their keys (by code point), each the key ({text}) and the value (an integer n from -2**63 to 2**63 "
        "- 1 as varint of 2n if n >= 0, else of -2n - 1)",
    }
    sums = {
        "xor": "one byte, the exclusive or of all bytes before it",
        "sum8": "one byte, the sum of all bytes before it modulo 256",
        "fletcher": "two bytes a, b: both start at 0; for each byte before them a = (a + byte) mod 255, then b = (b + "
        "a) mod 255",
        "crc8": f"one byte, the CRC-8 of all bytes before it with polynomial 0x{spec['poly']:02X}, initial value 0, "
        "most significant bit first, no reflection, no final xor",
    }
    fields = "\n".join(f"- `{n}`: {kinds[k]}" for n, k in spec["fields"])
    first = "most" if spec["high_first"] else "least"
    return (
        f"A message is the byte 0x{spec['magic']:02x}, the fields, and the checksum. Fields in this order:\n{fields}\n"
        f"A varint is a number from 0 to 2**64 - 1 in as few 7-bit groups as possible, {first} significant group "
        "first; each byte but the last has its highest bit set.\n"
        f"The checksum is {sums[spec['sum']]}."
    )


def _record(rng: random.Random, spec: dict[str, Any]) -> dict[str, Any]:
    def whole(bits: int, signed: bool) -> int:
        value = rng.getrandbits(rng.choice((1, 7, 8, 14, 15, 16, 21, 32, bits)))
        value &= (1 << (bits - signed)) - 1
        return -value - 1 if signed and rng.random() < 0.5 else value

    def text() -> str:
        return "".join(
            rng.choice("abcXYZ 09-_\u00e9\u00df\u4e2d\U0001f600") for _ in range(rng.choice((0, 1, 3, 9, 140)))
        )

    makers: dict[str, Any] = {
        "varint": lambda: whole(64, False),
        "signed": lambda: whole(64, True),
        "text": text,
        "list": lambda: [whole(16, True) for _ in range(rng.choice((0, 1, 2, 5)))],
        "flags": lambda: [rng.random() < 0.5 for _ in range(5)],
        "optional": lambda: rng.choice((None, whole(64, False))),
        "pairs": lambda: {text()[:4]: whole(64, True) for _ in range(rng.randint(0, 4))},
    }
    return {n: makers[k]() if k in makers else whole(int(k[1:]), k[0] == "i") for n, k in spec["fields"]}

"""Which versions of library symbols a shared object for Linux asks for, read from the file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

VERSION_NEEDS = 0x6FFFFFFE
"""Type of the section with them. (SHT_GNU_verneed)"""


class Section(NamedTuple):
    """A section header of a 64-bit file."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


def needed_versions(path: Path) -> set[str]:
    """Such as `GLIBC_2.28`."""
    data = path.read_bytes()
    assert data[:6] == b"\x7fELF\x02\x01", "a little-endian file of 64 bits"
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [
        Section(*struct.unpack_from("<IIQQQQIIQQ", data, table + i * size)) for i in range(count)
    ]
    needs = next(section for section in sections if section.kind == VERSION_NEEDS)
    names = sections[needs.link].offset
    found: set[str] = set()
    entry = needs.offset
    for _ in range(needs.info):
        _, auxiliaries, _, first, following = struct.unpack_from("<HHIII", data, entry)
        auxiliary = entry + first
        for _ in range(auxiliaries):
            _, _, _, name, next_one = struct.unpack_from("<IHHII", data, auxiliary)
            begin = names + name
            found.add(data[begin : data.index(b"\0", begin)].decode())
            auxiliary += next_one
        entry += following
    return found

#!/usr/bin/env python3
"""Writes osd.txt: CDBs, lists and parameter data of T10 OSD commands, field by field.

Laid out once more from the description of the standard, with the standard library alone, so that
it shares nothing with the crates. Run it anywhere:
    python3 make_osd.py           writes the file beside it
    python3 make_osd.py --check   only says whether the file is what it would write
"""
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
R = random.Random(400)
LENGTHS = {"osd1": 200, "r03": 224, "osd2": 236}
UNUSED = 0xFFFFFFFF


def put(buffer, at, length, value):
    """Puts a big-endian number, or bytes, at an offset."""
    data = value if isinstance(value, bytes) else value.to_bytes(length, "big")
    assert len(data) == length, (at, length, data)
    buffer[at:at + length] = data


def be(length, value):
    return value.to_bytes(length, "big")


def random_bytes(count):
    return bytes(R.randrange(256) for _ in range(count))


def number(bits=64):
    return R.getrandbits(R.choice([bits, bits, bits // 2]))


def an_id():
    return R.choice([0x10000, 0x10005, R.getrandbits(40) + 0x10000])


# --- Offsets: mantissa of 28 bits, exponent of 4 bits, signed in OSD-2. ---

def code_of(version, offset):
    exponents = range(0, 15) if version == "osd1" else range(-5, 8)
    for exponent in exponents:
        step = 1 << (exponent + 8)
        if offset % step == 0 and offset // step < 1 << 28:
            code = (exponent % 16) << 28 | offset // step
            if offset == 0:
                code = 0
            return None if code == UNUSED else code
    return None


def an_offset(version):
    step = 256 if version == "osd1" else 8
    return R.choice([0, step, step * R.getrandbits(20), step << R.randrange(30)])


# --- Commands: name, OSD-1 code, OSD-2 code, fields. ---
# A field is (name, offset in OSD-1, offset in OSD-2, length, generator).

PID = ("partition", 16, 16, 8, an_id)
OID = ("object", 24, 24, 8, an_id)
CHOSEN = ("object", 24, 24, 8, lambda: R.choice([0, an_id()]))
LEN = ("length", 36, 32, 8, number)
START = ("start", 44, 40, 8, number)
ALLOC = ("allocation", 36, 32, 8, number)
LIST = [("initial", 44, 40, 8, number), ("list_identifier", 32, 48, 4, lambda: number(32)), ALLOC]
SOURCE = ("source", 40, 40, 8, an_id)
METHOD = ("method", 14, 14, 1, lambda: R.choice([0, 1, 0x41, 0xFF]))
TIME = ("time", 15, 15, 1, lambda: R.randrange(16))
SCOPE = ("scope", 10, 10, 1, lambda: R.randrange(2))
SCOPES = ("scope", 10, 10, 1, lambda: R.randrange(3))
IDENTIFIER = ("identifier", 25, 25, 7, lambda: random_bytes(7))

COMMANDS = {
    "ObjectStructureCheck": (None, 0x8880, [PID]),
    "FormatOsd": (0x8801, 0x8881, [LEN]),
    "Create": (0x8802, 0x8882, [PID, ("count", 36, 32, 2, lambda: number(16))]),
    "CreateAndWrite": (0x8812, 0x8892, [PID, CHOSEN, LEN, START]),
    "Read": (0x8805, 0x8885, [PID, OID, LEN, START]),
    "Write": (0x8806, 0x8886, [PID, OID, LEN, START]),
    "Append": (0x8807, 0x8887, [PID, OID, LEN]),
    "Clear": (None, 0x8889, [PID, OID, LEN, START]),
    "Punch": (None, 0x8884, [PID, OID, LEN, START]),
    "Flush": (0x8808, 0x8888, [PID, OID, SCOPE]),
    "FlushCollection": (0x881A, 0x889A, [PID, OID, SCOPES]),
    "FlushPartition": (0x881B, 0x889B, [PID, SCOPES]),
    "FlushOsd": (0x881C, 0x889C, [SCOPES]),
    "ReadMap": (None, 0x88B1, [PID, OID, ALLOC, START,
                               ("map_type", 48, 48, 2, lambda: R.choice([0, 1, 2, 3, 0x8000]))]),
    "List": (0x8803, 0x8883, [PID] + LIST),
    "ListCollection": (0x8817, 0x8897, [PID, OID] + LIST),
    "Remove": (0x880A, 0x888A, [PID, OID]),
    "CreatePartition": (0x880B, 0x888B, [PID]),
    "RemovePartition": (0x880C, 0x888C, [PID]),
    "CreateCollection": (0x8815, 0x8895, [PID, CHOSEN]),
    "RemoveCollection": (0x8816, 0x8896, [PID, OID]),
    "GetAttributes": (0x880E, 0x888E, [PID, OID]),
    "SetAttributes": (0x880F, 0x888F, [PID, OID]),
    "GetMemberAttributes": (None, 0x88A2, [PID, OID]),
    "SetMemberAttributes": (None, 0x88A3, [PID, OID]),
    "RemoveMemberObjects": (None, 0x88A1, [PID, OID]),
    "SetKey": (0x8818, 0x8898, [PID, ("version", 24, 24, 1, lambda: R.randrange(16)), IDENTIFIER,
                                ("seed", 32, 32, 20, lambda: random_bytes(20))]),
    "SetMasterKey": (0x8819, 0x8899, [("group", 24, 24, 1, lambda: 14), IDENTIFIER,
                                      ("list_bytes", 32, 32, 4, lambda: number(32)),
                                      ("allocation", 36, 36, 4, lambda: number(32))]),
    "PerformScsiCommand": (0x8F7E, 0x8F7C, [PID, OID, ("cdb", 32, 32, 16,
                                                       lambda: random_bytes(16))]),
    "PerformTaskManagementFunction": (
        0x8F7F, 0x8F7D, [PID, OID, ("allocation", 32, 32, 2, lambda: 8),
                         ("function", 39, 39, 1, lambda: R.choice([1, 2, 4, 8, 0x10, 0x80])),
                         ("tag", 40, 40, 8, number)]),
    "Query": (None, 0x88A0, [PID, OID, ALLOC]),
    # From revision 4.
    "ReadMapsAndCompare": (None, 0x88B2, [PID, OID, ALLOC, START]),
    "CreateUserTrackingCollection": (None, 0x8894, [PID, CHOSEN, SOURCE]),
    "CopyUserObjects": (None, 0x8893, [PID, CHOSEN, METHOD]),
    "CreateSnapshot": (None, 0x88A9, [PID, SOURCE, METHOD, TIME]),
    "CreateClone": (None, 0x88A8, [PID, SOURCE, METHOD, TIME]),
    "DetachClone": (None, 0x88AA, [PID]),
    "RefreshSnapshotOrClone": (None, 0x88AB, [PID, SOURCE]),
    "RestorePartitionFromSnapshot": (None, 0x88AC, [PID, SOURCE]),
}
FROM_R04 = list(COMMANDS)[list(COMMANDS).index("ReadMapsAndCompare"):]
NO_CONTINUATION = ("List", "ListCollection", "ReadMap", "SetKey", "Query")
# Fixed bits of byte 11.
FORMAT_BITS = {"SetKey": 3, "SetMasterKey": 1, "RemoveCollection": 1}


def attributes(version, cdb, kind):
    """Fills bytes 52 to 79 and CDBFMT; returns the fields."""
    def offset(at, value):
        put(cdb, at, 4, code_of(version, value))
        return value

    if kind == "none":
        cdb[11] |= 0x30
        for at in (56, 64, 72):
            put(cdb, at, 4, UNUSED)
        return "none"
    if kind == "list":
        cdb[11] |= 0x30
        values = [8 * R.randrange(1, 99), an_offset(version), R.randrange(1, 1 << 20),
                  an_offset(version), 8 * R.randrange(1, 99), an_offset(version)]
        for index, value in enumerate(values):
            if index % 2:
                offset(52 + 4 * index, value)
            else:
                put(cdb, 52 + 4 * index, 4, value)
        return "list:" + ":".join(str(value) for value in values)
    if kind == "page":
        cdb[11] |= 0x20
        values = [R.randrange(1, 1 << 32), R.randrange(1, 1 << 16), an_offset(version),
                  R.randrange(1, 1 << 31), R.randrange(1 << 31), R.randrange(1, 0xFFFF),
                  an_offset(version)]
        for index, value in enumerate(values):
            if index in (2, 6):
                offset(52 + 4 * index, value)
            else:
                put(cdb, 52 + 4 * index, 4, value)
        return "page:" + ":".join(str(value) for value in values)
    cdb[11] |= 0x10
    page, attribute, value = R.randrange(1, 1 << 31), R.getrandbits(31), random_bytes(18)
    value = value[:R.randrange(19)]
    put(cdb, 52, 4, page)
    put(cdb, 56, 4, attribute)
    put(cdb, 60, 2, len(value))
    put(cdb, 62, len(value), value)
    return f"one:{page}:{attribute}:{value.hex() or '-'}"


def capability(version, buffer, at):
    """Fills a capability; returns its fields."""
    kind = 1 if version == "osd1" else R.choice([1, 2, 2])
    fields = {"format": kind, "key_version": R.randrange(16), "algorithm": R.randrange(3),
              "method": R.randrange(3), "expiration": R.getrandbits(48),
              "audit": random_bytes(20), "discriminator": random_bytes(12),
              "created": R.getrandbits(48), "object_type": R.choice([1, 2, 0x40, 0x80]),
              "permissions": R.getrandbits(16) & 0xFFFC, "descriptor_type": R.randrange(1, 4),
              "access": 0, "tag": R.getrandbits(32), "epoch": 0, "partition": an_id(),
              "object": an_id(), "range_start": 0, "range_length": 0}
    positions = {"tag": (56, 4), "partition": (60, 8), "object": (68, 8)}
    if kind == 2:
        fields.update(access=R.getrandbits(32), epoch=R.getrandbits(16), range_start=number(),
                      range_length=number())
        positions = {"access": (56, 4), "tag": (60, 4), "epoch": (64, 2), "partition": (72, 8),
                     "object": (80, 8), "range_length": (88, 8), "range_start": (96, 8)}
    buffer[at] = kind
    buffer[at + 1] = fields["key_version"] << 4 | fields["algorithm"]
    buffer[at + 2] = fields["method"]
    buffer[at + 55] = fields["descriptor_type"] << 4
    positions |= {"expiration": (4, 6), "audit": (10, 20), "discriminator": (30, 12),
                  "created": (42, 6), "object_type": (48, 1), "permissions": (49, 2)}
    for name, (offset, length) in positions.items():
        put(buffer, at + offset, length, fields[name])
    return ":".join(shown(value) for value in fields.values())


def security(version, cdb):
    """Fills the security parameters; returns them."""
    at = {"osd1": (160, 180, 192, 196), "r03": (184, 204, 216, 220),
          "osd2": (184, 216, 228, 232)}[version]
    value = random_bytes(at[1] - at[0])
    time, chance = R.getrandbits(48), random_bytes(6)
    offsets = R.getrandbits(32), R.getrandbits(32)
    put(cdb, at[0], len(value), value)
    put(cdb, at[1], 12, be(6, time) + chance)
    put(cdb, at[2], 4, offsets[0])
    put(cdb, at[3], 4, offsets[1])
    return f"{value.hex()}:{time}:{chance.hex()}:{offsets[0]}:{offsets[1]}"


def shown(value):
    return value.hex() or "-" if isinstance(value, bytes) else str(value)


def cdb_line(version, name, kind, is_full):
    osd1, osd2, fields = COMMANDS[name]
    cdb = bytearray(LENGTHS[version])
    cdb[0], cdb[7] = 0x7F, LENGTHS[version] - 8
    put(cdb, 8, 2, osd1 if version == "osd1" else osd2)
    line = ["cdb", version, name]
    for field, at_osd1, at_osd2, length, value in fields:
        value = value()
        at = at_osd1 if version == "osd1" else at_osd2
        put(cdb, at, length, value)
        line.append(f"{field}={shown(value)}")
    cdb[11] |= FORMAT_BITS.get(name, 0)
    if is_full:
        cdb[1] = R.randrange(256)
        line.append(f"control={cdb[1]}")
        cdb[10] |= 0x18
        line.append("dpo_fua=1")
        cdb[12] = 0x7F
        line.append("timestamps=127")
        if version != "osd1" and not name.startswith("Flush"):
            isolation = R.choice([1, 2, 4, 5, 7])
            cdb[10] |= isolation
            line.append(f"isolation={isolation}")
    if version == "osd2" and is_full and name not in NO_CONTINUATION:
        length = 8 * R.randrange(6, 8192)
        put(cdb, 48, 4, length)
        line.append(f"continuation={length}")
    if name == "Query":
        where, at, length = ("list_bytes", 48, 4) if version == "r03" else ("matches", 40, 8)
        value = number(8 * length)
        put(cdb, at, length, value)
        line.append(f"{where}={value}")
    line.append("attributes=" + attributes(version, cdb, kind))
    if is_full:
        line.append("capability=" + capability(version, cdb, 80))
        line.append("security=" + security(version, cdb))
    else:
        put(cdb, LENGTHS[version] - 8, 8, b"\xff" * 8)
    return " ".join(line + ["=", bytes(cdb).hex()])


def cdbs():
    kinds = {"osd1": ["none", "list", "page"], "r03": ["none", "list", "page", "one"],
             "osd2": ["none", "list", "page", "one"]}
    for version in LENGTHS:
        for index, name in enumerate(COMMANDS):
            if version == "osd1" and COMMANDS[name][0] is None:
                continue
            if version == "r03" and name in FROM_R04:
                continue
            kind = kinds[version][index % len(kinds[version])]
            yield cdb_line(version, name, kind, index % 3 == 0 or name == "Query")
            if version == "osd2":
                yield cdb_line(version, name, R.choice(kinds[version]), index % 3 != 0)


# --- Offsets and lists. ---

def offsets():
    for version in ("osd1", "osd2"):
        for offset in [0, 8, 256, 264, 4096, (1 << 28) - 8, ((1 << 28) - 1) << 7,
                       ((1 << 28) - 1) << 8, 1 << 36, 1 << 42, 1 << 43, 1 << 49, 1 << 50]:
            code = code_of(version, offset)
            yield f"offset {version} {offset} = {'-' if code is None else code}"


def pairs(count):
    return [(R.choice([1, 0x30000001, 0x90000001, 0x10003]), R.randrange(1, 300),
             random_bytes(R.choice([0, 1, 8, 13, 40]))) for _ in range(count)]


def padded(data):
    return data + bytes(-len(data) % 8)


def value_entry(version, page, attribute, value, result):
    if version == "osd1":
        length = 0xFFFF if result and not value else len(value)
        return be(4, page) + be(4, attribute) + be(2, length) + value
    return be(4, page) + be(4, attribute) + bytes(6) + be(2, len(value)) + padded(value)


def list_header(version, kind, length):
    if version == "osd1":
        return be(1, kind) + bytes(1) + be(2, length)
    return be(1, kind) + bytes(3) + be(4, length)


def listed(values):
    return " ".join(f"{page}:{attribute}:{value.hex() or '-'}" for page, attribute, value in values)


def lists():
    for version in ("osd1", "osd2"):
        for count in (0, 1, 5):
            values = pairs(count)
            names = b"".join(be(4, page) + be(4, attribute) for page, attribute, _ in values)
            data = list_header(version, 1, 0) + names
            yield f"get_list {version} {listed(values)} = {data.hex()}"
            entries = b"".join(value_entry(version, *value, False) for value in values)
            data = list_header(version, 9, 0) + entries
            yield f"set_list {version} {listed(values)} = {data.hex()}"
            entries = b"".join(value_entry(version, *value, True) for value in values)
            data = list_header(version, 9, len(entries)) + entries
            yield f"retrieved {version} {listed(values)} = {data.hex()}"
            entries = object_entry(version, 0x10007, 0x80, values)
            kind = 15 if version == "osd1" else 14
            data = list_header(version, kind, len(entries)) + entries
            yield f"objects {version} {listed(values)} = {data.hex()}"


def object_entry(version, oid, kind, values):
    if version == "osd1":
        return b"".join(be(8, oid) + value_entry(version, *value, True) for value in values)
    entries = b"".join(value_entry(version, *value, True) for value in values)
    return be(8, oid) + be(1, kind) + bytes(5) + be(2, len(entries)) + entries


# --- CDB continuation segments. ---

def segment(name, descriptors):
    data = be(1, 1) + bytes(1) + be(2, COMMANDS[name][1]) + bytes(4) + bytes(range(32))
    for kind, body in descriptors:
        pad = -len(body) % 8
        data += be(2, kind) + bytes(1) + be(1, pad) + be(4, len(body)) + body + bytes(pad)
    return data.hex()


def segments():
    ranges = [(R.getrandbits(40), R.getrandbits(20)) for _ in range(3)]
    body = b"".join(be(8, start) + be(8, length) for start, length in ranges)
    text = " ".join(f"{start}:{length}" for start, length in ranges)
    yield f"continuation scatter_gather {text} = {segment('Write', [(1, body)])}"
    criteria = [(R.randrange(1, 0x30000000), R.randrange(300), random_bytes(R.randrange(9)),
                 random_bytes(R.randrange(9))) for _ in range(3)]
    body = be(1, 1) + bytes(3)
    for page, attribute, low, high in criteria:
        entry = be(4, page) + be(4, attribute) + be(2, len(low)) + low + be(2, len(high)) + high
        body += bytes(2) + be(2, len(entry)) + entry
    text = " ".join(f"{page}:{attribute}:{low.hex() or '-'}:{high.hex() or '-'}"
                    for page, attribute, low, high in criteria)
    yield f"continuation query {text} = {segment('Query', [(2, body)])}"
    ids = [(an_id(), an_id()) for _ in range(2)]
    body = b"".join(be(8, pid) + be(8, oid) for pid, oid in ids)
    text = " ".join(f"{pid}:{oid}" for pid, oid in ids)
    yield f"continuation user_objects {text} = {segment('ReadMapsAndCompare', [(0x100, body)])}"
    pid, oid = an_id(), an_id()
    body = be(8, pid) + be(8, oid) + be(1, 3) + be(1, 9)
    data = segment("CopyUserObjects", [(0x101, body)])
    yield f"continuation copy_source {pid}:{oid}:3:9 = {data}"
    body = bytearray(104)
    text = capability("osd2", body, 0)
    data = segment("CreateClone", [(0xFFEE, bytes(body))])
    yield f"continuation capabilities {text} = {data}"


# --- Parameter data and sense data. ---

FORMATS = {"partitions": 0x01, "collections": 0x11, "user": 0x21}
TYPES = {"partitions": 2, "collections": 0x40, "user": 0x80}


def responses():
    ids = [an_id() for _ in range(4)]
    text = " ".join(str(oid) for oid in ids)
    plain = b"".join(be(8, oid) for oid in ids)
    values = pairs(2)
    for kind, form in FORMATS.items():
        rest = be(8, 0x10099) + be(4, 77) + bytes(3)
        for version, flags in (("osd1", 3 if kind == "partitions" else 2), ("osd2", form << 2 | 2)):
            # OSD-1 does not tell collections from user objects.
            name = "user" if version == "osd1" and kind == "collections" else kind
            data = be(8, 16 + len(plain)) + rest + be(1, flags) + plain
            yield f"list {version} {name} {text} = {data.hex()}"
        entries = b"".join(object_entry("osd2", oid, TYPES[kind], values) for oid in ids)
        data = be(8, 16 + len(entries)) + rest + be(1, (form + 1) << 2 | 2) + entries
        yield f"attribute_list {kind} {text} {listed(values)} = {data.hex()}"
    entries = [(R.choice([1, 2, 3, 0x8000]), R.getrandbits(31), R.getrandbits(50))
               for _ in range(4)]
    data = be(8, 16 * len(entries)) + b"".join(
        bytes(2) + be(2, kind) + be(4, length) + be(8, start) for kind, length, start in entries)
    text_of_map = " ".join(f"{kind}:{start}:{length}" for kind, length, start in entries)
    yield f"map {text_of_map} = {data.hex()}"
    data = be(8, 5 + len(plain)) + bytes(4) + be(1, 0x84) + plain
    yield f"matches r03 {text} = {data.hex()}"
    data = be(8, 4 + len(plain)) + bytes(3) + be(1, 0x84) + plain
    yield f"matches osd2 {text} = {data.hex()}"
    descriptors = (bytes([2, 6, 0, 0, 0xC0]) + be(2, 24) + bytes(1)
                   + bytes([6, 0x1E]) + bytes(6) + be(4, 0x1010) + be(4, 0xB0000000)
                   + be(8, ids[0]) + be(8, ids[1])
                   + bytes([7, 0x20]) + bytes(range(32))
                   + bytes([8, 18, 0, 0]) + be(4, 2) + be(4, 1) + be(4, 5) + be(4, 6)
                   + bytes([1, 10, 0, 0]) + be(8, 99))
    data = bytes([0x72, 5, 0x24, 0, 0, 0, 0, len(descriptors)]) + descriptors
    yield f"sense {ids[0]}:{ids[1]} = {data.hex()}"


def main():
    lines = ["# T10 OSD: kind, version, fields = bytes; numbers are decimal, - stands for no bytes"]
    for part in (cdbs, offsets, lists, segments, responses):
        lines.extend(" ".join(line.split()) for line in part())
    text = "\n".join(lines) + "\n"
    path = os.path.join(HERE, "osd.txt")
    if "--check" in sys.argv:
        with open(path, encoding="ascii") as file:
            sys.exit(0 if file.read() == text else f"{path} differs: run make_osd.py")
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


main()

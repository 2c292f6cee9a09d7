#!/usr/bin/env python3
"""Writes pdus.txt, logins.txt and negotiation.txt: what both languages must encode and decode.

Laid out from RFC 7143 and RFC 7144 once more, with the standard library alone, so that it shares
nothing with the crates or the Java modules. Run it anywhere:
    python3 make_vectors.py           writes the three files beside it
    python3 make_vectors.py --check   only says whether they are what it would write
"""
import base64
import hashlib
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
RESERVED = 0xFFFFFFFF

# --- PDUs: name, opcode, then field, first byte, length in bytes. RFC 7143 section 11. ---

AHS = [("total_ahs_words", 4, 1), ("data_segment_length", 5, 3)]
LUN = [("lun", 8, 8)]
ITT = [("initiator_task_tag", 16, 4)]
TTT = [("target_transfer_tag", 20, 4)]
REQUEST = [("cmd_sn", 24, 4), ("exp_stat_sn", 28, 4)]
ANSWER = [("stat_sn", 24, 4), ("exp_cmd_sn", 28, 4), ("max_cmd_sn", 32, 4)]
FIRST = [("first", 0, 1)]
FLAGS = FIRST + [("flags", 1, 1)]

PDUS = {
    "NopOut": (0x00, FLAGS + AHS + LUN + ITT + TTT + REQUEST),
    "ScsiCommand": (0x01, FLAGS + [("priority", 2, 1)] + AHS + LUN + ITT
                    + [("expected_data_transfer_length", 20, 4)] + REQUEST + [("cdb", 32, 16)]),
    "TaskManagementRequest": (0x02, FIRST + [("flags_and_function", 1, 1)] + AHS + LUN + ITT
                              + [("referenced_task_tag", 20, 4)] + REQUEST
                              + [("ref_cmd_sn", 32, 4), ("exp_data_sn", 36, 4)]),
    "LoginRequest": (0x03, FLAGS + [("version_max", 2, 1), ("version_min", 3, 1)] + AHS
                     + [("isid", 8, 6), ("tsih", 14, 2)] + ITT + [("cid", 20, 2)] + REQUEST),
    "TextRequest": (0x04, FLAGS + AHS + LUN + ITT + TTT + REQUEST),
    "DataOut": (0x05, FLAGS + AHS + LUN + ITT + TTT
                + [("exp_stat_sn", 28, 4), ("data_sn", 36, 4), ("buffer_offset_bytes", 40, 4)]),
    "LogoutRequest": (0x06, FIRST + [("flags_and_reason", 1, 1)] + AHS + ITT + [("cid", 20, 2)]
                      + REQUEST),
    "SnackRequest": (0x10, FLAGS + AHS + LUN + ITT + TTT
                     + [("exp_stat_sn", 28, 4), ("first_missing", 40, 4), ("run_length", 44, 4)]),
    "NopIn": (0x20, FLAGS + AHS + LUN + ITT + TTT + ANSWER),
    "ScsiResponse": (0x21, FLAGS + [("response", 2, 1), ("status", 3, 1)] + AHS
                     + [("status_qualifier", 8, 2)] + ITT + [("snack_tag", 20, 4)] + ANSWER
                     + [("exp_data_sn", 36, 4), ("bidi_read_residual_bytes", 40, 4),
                        ("residual_bytes", 44, 4)]),
    "TaskManagementResponse": (0x22, FLAGS + [("response", 2, 1)] + AHS + [("information", 8, 3)]
                               + ITT + ANSWER),
    "LoginResponse": (0x23, FLAGS + [("version_max", 2, 1), ("version_active", 3, 1)] + AHS
                      + [("isid", 8, 6), ("tsih", 14, 2)] + ITT + ANSWER + [("status", 36, 2)]),
    "TextResponse": (0x24, FLAGS + AHS + LUN + ITT + TTT + ANSWER),
    "DataIn": (0x25, FLAGS + [("status", 3, 1)] + AHS + LUN + ITT + TTT + ANSWER
               + [("data_sn", 36, 4), ("buffer_offset_bytes", 40, 4), ("residual_bytes", 44, 4)]),
    "LogoutResponse": (0x26, FLAGS + [("response", 2, 1)] + AHS + ITT + ANSWER
                       + [("time_to_wait_seconds", 40, 2), ("time_to_retain_seconds", 42, 2)]),
    "ReadyToTransfer": (0x31, FLAGS + AHS + LUN + ITT + TTT + ANSWER
                        + [("r2t_sn", 36, 4), ("buffer_offset_bytes", 40, 4),
                           ("desired_length_bytes", 44, 4)]),
    "AsyncMessage": (0x32, FLAGS + AHS + LUN + ITT + ANSWER
                     + [("event", 36, 1), ("vendor_code", 37, 1), ("parameter_1", 38, 2),
                        ("parameter_2", 40, 2), ("parameter_3", 42, 2)]),
    "Reject": (0x3F, FLAGS + [("reason", 2, 1)] + AHS + ITT + ANSWER + [("data_sn", 36, 4)]),
}

# What such PDUs look like in life; fields that are not named are 0.
LIFE = [
    ("NopOut", dict(first=0x40, flags=0x80, initiator_task_tag=7, target_transfer_tag=RESERVED,
                    cmd_sn=100, exp_stat_sn=9)),
    ("NopIn", dict(flags=0x80, initiator_task_tag=RESERVED, target_transfer_tag=0x11,
                   stat_sn=9, exp_cmd_sn=100, max_cmd_sn=131)),
    ("ScsiCommand", dict(flags=0xC1, lun=0x4101 << 48, initiator_task_tag=0x14,
                         expected_data_transfer_length=4096, cmd_sn=0xFFFFFFFF, exp_stat_sn=1,
                         cdb=0x88000000000000000800000000080000)),
    ("ScsiCommand", dict(first=0x41, flags=0x21, priority=0x30, data_segment_length=8192,
                         total_ahs_words=2, initiator_task_tag=0x15,
                         expected_data_transfer_length=1 << 20,
                         cdb=0x8A080000000000000001000008000000)),
    ("ScsiResponse", dict(flags=0x82, status=2, data_segment_length=20, initiator_task_tag=0x14,
                          snack_tag=0, stat_sn=10, exp_cmd_sn=1, max_cmd_sn=32, exp_data_sn=1,
                          residual_bytes=512)),
    ("DataIn", dict(flags=0x81, data_segment_length=4096, initiator_task_tag=0x14,
                    target_transfer_tag=RESERVED, stat_sn=0xFFFFFFFF, exp_cmd_sn=0,
                    max_cmd_sn=31, data_sn=3, buffer_offset_bytes=0x3000)),
    ("ReadyToTransfer", dict(flags=0x80, initiator_task_tag=0x15, target_transfer_tag=1,
                             stat_sn=10, r2t_sn=2, buffer_offset_bytes=1 << 18,
                             desired_length_bytes=1 << 18)),
    ("DataOut", dict(flags=0x80, data_segment_length=8192, initiator_task_tag=0x15,
                     target_transfer_tag=1, exp_stat_sn=11, data_sn=31,
                     buffer_offset_bytes=(1 << 19) - 8192)),
    ("LoginRequest", dict(first=0x43, flags=0x87, isid=0x80123456789A, cid=1, cmd_sn=1,
                          initiator_task_tag=1, data_segment_length=300)),
    ("LoginResponse", dict(flags=0x87, isid=0x80123456789A, tsih=1, initiator_task_tag=1,
                           stat_sn=5, exp_cmd_sn=1, max_cmd_sn=32)),
    ("LoginResponse", dict(status=0x0101, data_segment_length=40, initiator_task_tag=1)),
    ("AsyncMessage", dict(flags=0x80, initiator_task_tag=RESERVED, event=1, parameter_3=10)),
    ("Reject", dict(flags=0x80, reason=4, initiator_task_tag=RESERVED, data_segment_length=48)),
    ("LogoutRequest", dict(first=0x46, flags_and_reason=0x81, cid=3, initiator_task_tag=9)),
    ("TaskManagementRequest", dict(first=0x42, flags_and_function=0x81, initiator_task_tag=10,
                                   referenced_task_tag=9, cmd_sn=5, ref_cmd_sn=4)),
    ("TaskManagementRequest", dict(first=0x42, flags_and_function=0x85, lun=1 << 48,
                                   initiator_task_tag=11, referenced_task_tag=RESERVED)),
]


def encode(name, values):
    header = bytearray(48)
    for field, at, length in PDUS[name][1]:
        header[at:at + length] = values.get(field, 0).to_bytes(length, "big")
    return bytes(header)


def pdu_line(name, values):
    fields = sorted(PDUS[name][1], key=lambda field: field[1])
    said = " ".join(f"{field}=0x{values.get(field, 0):0{2 * length}x}"
                    for field, _, length in fields)
    return f"{name} {said} = {encode(name, values).hex()}"


def pdus():
    yield "# PDU  field=value ...  = the 48 bytes of its Basic Header Segment. RFC 7143 section 11"
    dice = random.Random(7143)
    for name, (opcode, fields) in PDUS.items():
        yield pdu_line(name, {"first": opcode})
        everything = {field: (1 << 8 * length) - 1 for field, _, length in fields}
        yield pdu_line(name, {**everything, "first": 0xC0 | opcode})
        for chosen, _, length in fields:
            # One field at its highest bit and its lowest, so that a wrong place is noticed.
            if chosen != "first":
                value = (1 << 8 * length - 1) | 1
                yield pdu_line(name, {"first": opcode, chosen: value})
        for _ in range(4):
            values = {field: dice.getrandbits(8 * length) for field, _, length in fields}
            immediate = dice.choice([0, 0x40])
            yield pdu_line(name, {**values, "first": immediate | opcode})
    for name, values in LIFE:
        values = {"first": PDUS[name][0], **values}
        yield pdu_line(name, values)


# --- Logins: RFC 7143 sections 6.3, 11.12, 11.13 and 12.1.3. ---

SECURITY, OPERATIONAL, FULL_FEATURE = 0, 1, 3
TRANSIT, CONTINUE = 0x80, 0x40
HASHES = {5: hashlib.md5, 6: hashlib.sha1, 7: hashlib.sha256, 8: hashlib.sha3_256}
SEGMENT = 8192

# What an initiator of this project proposes unless told otherwise, in the order it does.
PROPOSALS = [
    ("HeaderDigest", "None"), ("DataDigest", "None"), ("MaxConnections", "1"),
    ("InitialR2T", "No"), ("ImmediateData", "Yes"), ("MaxBurstLength", "1048576"),
    ("FirstBurstLength", "262144"), ("DefaultTime2Wait", "2"), ("DefaultTime2Retain", "20"),
    ("MaxOutstandingR2T", "8"), ("DataPDUInOrder", "Yes"), ("DataSequenceInOrder", "Yes"),
    ("ErrorRecoveryLevel", "0"), ("TaskReporting", "FastAbort,ResponseFence,RFC3720"),
    ("iSCSIProtocolLevel", "2"), ("MaxRecvDataSegmentLength", "262144"),
]
# Irrelevant in discovery, and only for the leading connection. RFC 7143 section 13.
NORMAL_ONLY = {"MaxConnections", "InitialR2T", "ImmediateData", "MaxBurstLength",
               "FirstBurstLength", "MaxOutstandingR2T", "DataPDUInOrder", "DataSequenceInOrder",
               "TaskReporting", "iSCSIProtocolLevel"}
LEADING_ONLY = NORMAL_ONLY | {"DefaultTime2Wait", "DefaultTime2Retain", "ErrorRecoveryLevel"}
# What holds when nothing is negotiated. RFC 7143 section 13, RFC 7144 section 7.1.1.
DEFAULTS = dict(max_connections=1, initial_r2t="Yes", immediate_data="Yes",
                max_burst_bytes=262144, first_burst_bytes=65536, time_to_wait_seconds=2,
                time_to_retain_seconds=20, max_outstanding_r2t=1, data_pdu_in_order="Yes",
                data_sequence_in_order="Yes", error_recovery_level=0, task_reporting="RFC3720",
                protocol_level=1, header_digest="None", data_digest="None",
                send_data_segment_bytes_max=8192, receive_data_segment_bytes_max=262144,
                portal_group_tag="-", target_alias="-")


def text(pairs):
    return b"".join(f"{key}={value}".encode() + b"\0" for key, value in pairs)


def proposals(discovery=False, leading=True, **changed):
    left_out = (NORMAL_ONLY if discovery else set()) | (set() if leading else LEADING_ONLY)
    return [(key, changed.get(key, value)) for key, value in PROPOSALS if key not in left_out]


class Login:
    """One transcript; both sides are said here, in order."""

    def __init__(self, name, about, **options):
        self.options = dict(
            initiator_name="iqn.2026-11.org.lunarsan:initiator", alias="-",
            target_name="iqn.2026-11.org.lunarsan:target", session_type="Normal",
            isid="80123456789a", tsih=0, cid=1, initiator_task_tag=0x1234, cmd_sn=100,
            entropy=bytes(range(33)).hex(), header_digest="None", data_digest="None",
            max_connections=1, chap_algorithms="-", chap_user="-", chap_secret="-",
            target_user="-", target_secret="-")
        self.options.update(options)
        self.lines = [f"login {name}", f"# {about}"]
        self.lines += [f"set {key} {value}" for key, value in self.options.items()]
        self.stat_sn = 0x10
        self.exp_stat_sn = 0

    def opening(self):
        pairs = [("InitiatorName", self.options["initiator_name"])]
        if self.options["alias"] != "-":
            pairs.append(("InitiatorAlias", self.options["alias"]))
        if self.options["target_name"] != "-":
            pairs.append(("TargetName", self.options["target_name"]))
        if self.options["tsih"] == 0:
            # On the leading connection only. RFC 7143 section 13.21.
            pairs.append(("SessionType", self.options["session_type"]))
        return pairs

    def says(self, mark, name, header, data):
        readable = data.replace(b"\0", b";").decode("utf-8", "backslashreplace")
        if len(readable) > 1000:
            readable = readable[:1000] + " ..."
        self.lines.append(f"# {mark} {readable}")
        header["data_segment_length"] = len(data)
        self.lines.append(f"{mark} {encode(name, header).hex()} {data.hex() or '-'}")

    def request(self, flags, data):
        data = data if isinstance(data, bytes) else text(data)
        self.says(">", "LoginRequest", dict(
            first=0x43, flags=flags, isid=int(self.options["isid"], 16),
            tsih=self.options["tsih"], cid=self.options["cid"],
            initiator_task_tag=self.options["initiator_task_tag"],
            cmd_sn=self.options["cmd_sn"], exp_stat_sn=self.exp_stat_sn), data)
        return self

    def response(self, flags, data, **fields):
        data = data if isinstance(data, bytes) else text(data)
        self.says("<", "LoginResponse", dict(
            first=0x23, flags=flags, isid=int(self.options["isid"], 16),
            initiator_task_tag=self.options["initiator_task_tag"], stat_sn=self.stat_sn,
            exp_cmd_sn=100, max_cmd_sn=131, **fields), data)
        self.stat_sn += 1
        self.exp_stat_sn = self.stat_sn
        return self

    def complete(self, tsih, **changed):
        values = {**DEFAULTS, "tsih": tsih, "exp_stat_sn": self.exp_stat_sn, "exp_cmd_sn": 100,
                  "max_cmd_sn": 131, **changed}
        self.lines.append("complete " + " ".join(f"{k}={v}" for k, v in values.items()))
        return self

    def failed(self, status=0, address="-", permanent="-", proven_by="-"):
        self.lines.append(f"failed status=0x{status:04x} address={address} "
                          f"permanent={permanent} proven_by={proven_by}")
        return self


def stage(current, following=None):
    return current << 2 if following is None else TRANSIT | current << 2 | following


TO_OPERATIONAL = stage(SECURITY, OPERATIONAL)
TO_FULL = stage(OPERATIONAL, FULL_FEATURE)
# Results where each answer agrees with the proposal.
AGREED = dict(initial_r2t="No", max_burst_bytes=1048576, first_burst_bytes=262144,
              max_outstanding_r2t=8, task_reporting="FastAbort", protocol_level=2)


def answers(**changed):
    given = dict(proposals(TaskReporting="FastAbort", MaxRecvDataSegmentLength="131072"))
    given.update(changed)
    return list(given.items())


def plain_logins():
    yield (opened(Login("plain", "without authentication, in one exchange"))
           .response(TO_FULL, answers(TargetPortalGroupTag=1), tsih=7)
           .complete(7, **AGREED, send_data_segment_bytes_max=131072, portal_group_tag=1))
    yield (opened(Login("alias", "names of both sides, in UTF-8", alias="G\u00e4ste"))
           .response(TO_FULL, [("TargetAlias", "K\u00fcche")] + answers(), tsih=0xFFFF)
           .complete(0xFFFF, **AGREED, send_data_segment_bytes_max=131072,
                     target_alias="K\u00fcche"))
    yield (opened(Login("silent", "a target that answers nothing: the defaults hold"))
           .response(TO_FULL, [], tsih=1)
           .complete(1))
    smaller = answers(MaxBurstLength="512", FirstBurstLength="512", InitialR2T="Yes",
                      ImmediateData="No", MaxOutstandingR2T="1", TaskReporting="ResponseFence",
                      iSCSIProtocolLevel="1", DefaultTime2Wait="3600", DefaultTime2Retain="0")
    yield (opened(Login("smaller", "a target that wants less of everything"))
           .response(TO_FULL, smaller, tsih=1)
           .complete(1, initial_r2t="Yes", immediate_data="No", max_burst_bytes=512,
                     first_burst_bytes=512, time_to_wait_seconds=3600, time_to_retain_seconds=0,
                     max_outstanding_r2t=1, task_reporting="ResponseFence", protocol_level=1,
                     send_data_segment_bytes_max=131072))
    yield (opened(Login("first-burst", "FirstBurstLength never exceeds MaxBurstLength"))
           .response(TO_FULL, [("MaxBurstLength", "4096")], tsih=1)
           .complete(1, max_burst_bytes=4096, first_burst_bytes=4096))
    yield (opened(Login("old-target", "a target that knows neither RFC 7143 nor RFC 7144"))
           .response(TO_FULL, [("TaskReporting", "NotUnderstood"),
                               ("iSCSIProtocolLevel", "NotUnderstood")], tsih=1)
           .complete(1))
    yield (opened(Login("irrelevant", "answers that leave a key at its default"))
           .response(TO_FULL, [("MaxBurstLength", "Irrelevant"),
                               ("ErrorRecoveryLevel", "Reject")], tsih=1)
           .complete(1))
    digests = dict(header_digest="CRC32C,None", data_digest="None,CRC32C")
    changed = dict(HeaderDigest="CRC32C,None", DataDigest="None,CRC32C")
    yield (opened(Login("digests", "lists in order of preference", **digests), **changed)
           .response(TO_FULL, [("HeaderDigest", "CRC32C"), ("DataDigest", "CRC32C")], tsih=1)
           .complete(1, header_digest="CRC32C", data_digest="CRC32C"))
    yield (opened(Login("hex-numbers", "numbers may be hexadecimal"))
           .response(TO_FULL, [("MaxBurstLength", "0x1000"), ("DefaultTime2Wait", "0X3")],
                     tsih=1)
           .complete(1, max_burst_bytes=4096, first_burst_bytes=4096, time_to_wait_seconds=3))


def opened(login, **changed):
    discovery = login.options["session_type"] == "Discovery"
    leading = login.options["tsih"] == 0
    return login.request(TO_FULL, login.opening() + proposals(discovery, leading, **changed))


def longer_logins():
    yield (opened(Login("discovery", "a discovery session", session_type="Discovery",
                        target_name="-"))
           .response(TO_FULL, [("HeaderDigest", "None")], tsih=3)
           .complete(3))
    yield (opened(Login("discovery-without-tsih", "an old target gives it no handle",
                        session_type="Discovery", target_name="-"))
           .response(TO_FULL, [], tsih=0)
           .complete(0))
    yield (opened(Login("second-connection", "it joins a session, and negotiates for itself",
                        tsih=7, cid=2))
           .response(TO_FULL, [("MaxRecvDataSegmentLength", "65536")], tsih=7)
           .complete(7, send_data_segment_bytes_max=65536))
    whole = text(answers())
    login = opened(Login("continued", "an answer in three pieces, with the C bit"))
    stay = stage(OPERATIONAL)
    login.response(stay | CONTINUE, whole[:20]).request(stay, [])
    login.response(stay | CONTINUE, whole[20:21]).request(stay, [])
    login.response(stay, whole[21:]).request(TO_FULL, [])
    yield (login.response(TO_FULL, [], tsih=1)
           .complete(1, **AGREED, send_data_segment_bytes_max=131072))
    long_alias = "A" * 255
    lists = ",".join(["CRC32C", "None"])
    yield (opened(Login("long-alias", "the longest value that is no list", alias=long_alias,
                        header_digest=lists), HeaderDigest=lists)
           .response(TO_FULL, [("HeaderDigest", "None")], tsih=1)
           .complete(1))
    login = opened(Login("rounds", "a target that asks, and takes its time"))
    login.response(stay, [("X-org.example.question", "1"), ("FutureKey", "2")])
    login.request(TO_FULL, [("X-org.example.question", "NotUnderstood"),
                            ("FutureKey", "NotUnderstood")])
    login.response(stay, []).request(TO_FULL, [])
    yield (login.response(TO_FULL, [("MaxRecvDataSegmentLength", "512")], tsih=1)
           .complete(1, send_data_segment_bytes_max=512))
    many = [(f"X-{number:03}." + "k" * 57, "v") for number in range(160)]
    refused = text([(key, "NotUnderstood") for key, _ in many])
    login = opened(Login("split-request", "answers over 8192 bytes go out in two pieces"))
    login.response(stay | CONTINUE, text(many)[:8000]).request(stay, [])
    login.response(stay, text(many)[8000:])
    login.request(stay | CONTINUE, refused[:SEGMENT]).response(stay, [])
    login.request(TO_FULL, refused[SEGMENT:])
    yield login.response(TO_FULL, [], tsih=1).complete(1)


SECRET, TARGET_SECRET = b"sixteen byte key", b"another 16 bytes"


def chap_response(algorithm, identifier, secret, challenge):
    answer = HASHES[algorithm](bytes([identifier]) + secret + challenge)
    return "0x" + answer.hexdigest()


def chap_login(name, about, offered, mutual=False, entropy=None):
    options = dict(chap_algorithms=offered, chap_user="initiator", chap_secret=SECRET.hex())
    if mutual:
        options.update(target_user="target", target_secret=TARGET_SECRET.hex())
    if entropy:
        options.update(entropy=entropy.hex())
    login = Login(name, about, **options)
    methods = "CHAP" if mutual else "CHAP,None"
    return login.request(TO_OPERATIONAL, login.opening() + [("AuthMethod", methods)])


def to_challenge(login, offered, algorithm, identifier, challenge, portal=True):
    told = [("TargetPortalGroupTag", "1")] if portal else []
    login.response(stage(SECURITY), told + [("AuthMethod", "CHAP")])
    login.request(stage(SECURITY), [("CHAP_A", offered)])
    return login.response(stage(SECURITY), [("CHAP_A", algorithm), ("CHAP_I", identifier),
                                            ("CHAP_C", challenge)])


def prove(login, algorithm, identifier, challenge, mutual=False):
    pairs = [("CHAP_N", "initiator"),
             ("CHAP_R", chap_response(algorithm, identifier, SECRET, challenge))]
    if mutual:
        entropy = bytes.fromhex(login.options["entropy"])
        ours = entropy[1:1 + HASHES[algorithm]().digest_size]
        pairs += [("CHAP_I", entropy[0]), ("CHAP_C", "0x" + ours.hex())]
    return login.request(TO_OPERATIONAL, pairs)


def mutual_answer(login, algorithm, secret=TARGET_SECRET, user="target"):
    entropy = bytes.fromhex(login.options["entropy"])
    ours = entropy[1:1 + HASHES[algorithm]().digest_size]
    return [("CHAP_N", user), ("CHAP_R", chap_response(algorithm, entropy[0], secret, ours))]


def chap_logins():
    for algorithm in HASHES:
        challenge = bytes(range(16 * (algorithm - 4)))
        offered = f"{algorithm}"
        login = chap_login(f"chap-{algorithm}", "one way", offered)
        to_challenge(login, offered, algorithm, 11, "0x" + challenge.hex())
        prove(login, algorithm, 11, challenge)
        login.response(TO_OPERATIONAL, []).request(TO_FULL, proposals())
        yield login.response(TO_FULL, [], tsih=1).complete(1, portal_group_tag=1)
    for algorithm in HASHES:
        challenge = bytes(255 - number % 256 for number in range(1024 // (9 - algorithm)))
        login = chap_login(f"mutual-{algorithm}", "both prove themselves", "8,7,6,5", True)
        # A base64-constant is as good as a hex-constant. RFC 7143 section 6.1.
        written = "0b" + base64.b64encode(challenge).decode()
        to_challenge(login, "8,7,6,5", algorithm, "0xff", written)
        prove(login, algorithm, 255, challenge, True)
        login.response(TO_OPERATIONAL, mutual_answer(login, algorithm))
        login.request(TO_FULL, proposals())
        yield login.response(TO_FULL, [], tsih=1).complete(1, portal_group_tag=1)
    login = chap_login("chap-not-wanted", "the target wants no proof", "7")
    login.response(TO_OPERATIONAL, [("AuthMethod", "None")]).request(TO_FULL, proposals())
    yield login.response(TO_FULL, [], tsih=1).complete(1)
    login = chap_login("chap-none-stays", "the same, but the target stays a round", "7")
    login.response(stage(SECURITY), [("AuthMethod", "None")]).request(TO_OPERATIONAL, [])
    login.response(TO_OPERATIONAL, []).request(TO_FULL, proposals())
    yield login.response(TO_FULL, [], tsih=1).complete(1)


def chap_failures():
    challenge = bytes(range(32))
    login = chap_login("wrong-secret", "the target does not believe us", "7")
    to_challenge(login, "7", 7, 1, "0x" + challenge.hex())
    prove(login, 7, 1, challenge)
    yield login.response(stage(SECURITY), [], status=0x0201).failed(0x0201, proven_by=7)
    cases = [("wrong-target-secret", dict(secret=b"some other thing")),
             ("wrong-target-name", dict(user="somebody")),
             ("proof-sent-back", dict(secret=SECRET, user="target"))]
    for name, changed in cases:
        login = chap_login(name, "a target that does not prove itself", "7", True)
        to_challenge(login, "7", 7, 1, "0x" + challenge.hex())
        prove(login, 7, 1, challenge, True)
        yield login.response(TO_OPERATIONAL, mutual_answer(login, 7, **changed)).failed()
    login = chap_login("no-target-proof", "a target that goes on without its proof", "7", True)
    to_challenge(login, "7", 7, 1, "0x" + challenge.hex())
    prove(login, 7, 1, challenge, True)
    yield login.response(TO_OPERATIONAL, []).failed()
    login = chap_login("reflection", "our own challenge, before we have said it", "7", True)
    guessed = bytes(range(1, 33))
    yield to_challenge(login, "7", 7, 0, "0x" + guessed.hex()).failed()
    login = chap_login("let-off", "who must prove itself cannot choose None", "7", True)
    yield login.response(TO_OPERATIONAL, [("AuthMethod", "None")]).failed()
    for name, pairs in [("algorithm-not-offered", [("CHAP_A", 5), ("CHAP_I", 1),
                                                   ("CHAP_C", "0x01")]),
                        ("no-identifier", [("CHAP_A", 7), ("CHAP_C", "0x01")]),
                        ("identifier-too-large", [("CHAP_A", 7), ("CHAP_I", 256),
                                                  ("CHAP_C", "0x01")]),
                        ("challenge-too-long", [("CHAP_A", 7), ("CHAP_I", 1),
                                                ("CHAP_C", "0x" + "00" * 1025)]),
                        ("empty-challenge", [("CHAP_A", 7), ("CHAP_I", 1), ("CHAP_C", "0x")]),
                        ("challenge-without-prefix", [("CHAP_A", 7), ("CHAP_I", 1),
                                                      ("CHAP_C", "0102")])]:
        login = chap_login(name, "a challenge that is none", "7")
        login.response(stage(SECURITY), [("AuthMethod", "CHAP")])
        login.request(stage(SECURITY), [("CHAP_A", "7")])
        yield login.response(stage(SECURITY), pairs).failed()
    yield Login("one-secret", "one secret for both directions is not even tried",
                chap_algorithms="7", chap_user="initiator", chap_secret=SECRET.hex(),
                target_user="target", target_secret=SECRET.hex()).failed()


def failures():
    for status in [0x0200, 0x0202, 0x0203, 0x0204, 0x0205, 0x0206, 0x0207, 0x0208, 0x0209,
                   0x020A, 0x020B, 0x0300, 0x0301, 0x0302]:
        yield (opened(Login(f"status-{status:04x}", "the target refuses"))
               .response(stage(OPERATIONAL), [], status=status).failed(status))
    for status, permanent in [(0x0101, "No"), (0x0102, "Yes")]:
        yield (opened(Login(f"moved-{status:04x}", "the target is elsewhere"))
               .response(stage(OPERATIONAL), [("TargetAddress", "[2001:db8::1]:3261,2")],
                         status=status)
               .failed(status, "[2001:db8::1]:3261,2", permanent))
    yield (opened(Login("moved-nowhere", "a redirection without an address"))
           .response(stage(OPERATIONAL), [], status=0x0101).failed(0x0101))
    for name, pairs in [("burst-too-large", [("MaxBurstLength", "16777215")]),
                        ("burst-too-small", [("MaxBurstLength", "511")]),
                        ("digest-not-offered", [("HeaderDigest", "CRC32C")]),
                        ("wrong-side", [("InitiatorName", "iqn.a")]),
                        ("wrong-stage", [("AuthMethod", "None")]),
                        ("group-too-large", [("TargetPortalGroupTag", "65536")]),
                        ("twice", [("TargetPortalGroupTag", "1"), ("TargetPortalGroupTag", "1")]),
                        ("segment-too-small", [("MaxRecvDataSegmentLength", "1")]),
                        ("level-raised", [("ErrorRecoveryLevel", "1")]),
                        ("not-understood", [("MaxBurstLength", "NotUnderstood")]),
                        ("constant-proposed", [("X-a", "Reject")]),
                        ("marker-proposed", [("IFMarker", "No")]),
                        ("leading-zero", [("MaxBurstLength", "04096")])]:
        yield (opened(Login(name, "an answer that must not be accepted"))
               .response(TO_FULL, pairs, tsih=1).failed())
    for name, data in [("unterminated", b"MaxBurstLength=4096"), ("no-equals", b"InitialR2T\0"),
                       ("not-utf8", b"TargetAlias=\xff\0"), ("bad-name", b"lower=1\0"),
                       ("hole", b"TargetAlias=a\0\0InitialR2T=Yes\0"),
                       ("value-too-long", b"TargetAlias=" + b"a" * 256 + b"\0")]:
        yield (opened(Login(name, "text that is none"))
               .response(TO_FULL, data, tsih=1).failed())
    yield opened(Login("no-tsih", "a final response without a TSIH")).response(
        TO_FULL, [], tsih=0).failed()
    yield opened(Login("other-tsih", "a second connection, put into another session", tsih=7,
                       cid=2)).response(TO_FULL, [], tsih=8).failed()
    for name, flags in [("other-stage", stage(SECURITY)),
                        ("stage-two", TRANSIT | OPERATIONAL << 2 | 2),
                        ("backwards", TRANSIT | OPERATIONAL << 2),
                        ("transit-and-continue", TO_FULL | CONTINUE)]:
        yield (opened(Login(name, "flags that contradict the request"))
               .response(flags, [], tsih=1).failed())
    yield opened(Login("other-version", "a version that nobody speaks")).response(
        TO_FULL, [], tsih=1, version_active=1).failed()


def logins():
    yield "# Logins of an initiator, byte by byte. RFC 7143 sections 6.3, 11.12, 11.13, 12.1.3"
    yield "# login name, set option value, > request and < response (header, data), the result"
    for group in (plain_logins, longer_logins, chap_logins, chap_failures, failures):
        for login in group():
            yield ""
            yield from login.lines


# --- Negotiation: RFC 7143 sections 6.1, 6.2 and 13. ---

BURST, COUNT, SECONDS = (512, 2**24 - 1), (1, 65535), (0, 3600)
NUMBERS = {  # key: range, default, result function
    "MaxConnections": (COUNT, 1, min),
    "MaxBurstLength": (BURST, 262144, min),
    "FirstBurstLength": (BURST, 65536, min),
    "DefaultTime2Wait": (SECONDS, 2, max),
    "DefaultTime2Retain": (SECONDS, 20, min),
    "MaxOutstandingR2T": (COUNT, 1, min),
    "ErrorRecoveryLevel": ((0, 2), 0, min),
    "iSCSIProtocolLevel": ((0, 31), 1, min),
}
BOOLEANS = {  # key: default, result function
    "InitialR2T": ("Yes", "or"), "ImmediateData": ("Yes", "and"),
    "DataPDUInOrder": ("Yes", "or"), "DataSequenceInOrder": ("Yes", "or"),
}
LISTS = {"HeaderDigest": ["None", "CRC32C"], "DataDigest": ["None", "CRC32C"],
         "TaskReporting": ["RFC3720", "ResponseFence", "FastAbort"]}


def number_rows(key):
    (low, high), default, result = NUMBERS[key]
    middle = (low + high) // 2
    # FirstBurstLength is never above MaxBurstLength, here its default. RFC 7143 section 13.14.
    ceiling = NUMBERS["MaxBurstLength"][1] if key == "FirstBurstLength" else high
    for offered in (low, middle, high):
        for ours in (low, middle, high):
            chosen = result(offered, ours)
            chosen = min(chosen, ceiling)
            yield f"target {key} {offered} {ours} {chosen} {chosen}"
    for bad in (low - 1, high + 1, "", "x", "1,2", "0" + str(high), "+1", 2**32 + middle):
        yield f"target {key} {bad if bad != '' else '-'} {middle} Reject {default}"
    chosen = min(result(middle, high), ceiling)
    yield f"target {key} 0x{middle:x} {high} {chosen} {chosen}"
    # An answer has to be what the result function can give.
    for answered in (low, middle, high):
        fits = result(answered, middle) == answered
        yield (f"initiator {key} {middle} {answered} "
               f"{min(answered, ceiling) if fits else 'error'}")
    for bad in (low - 1, high + 1, "x", "-"):
        yield f"initiator {key} {middle} {bad} error"
    yield f"initiator {key} {middle} Reject {default}"
    yield f"initiator {key} {middle} Irrelevant {default}"
    later = key == "iSCSIProtocolLevel"
    yield f"initiator {key} {middle} NotUnderstood {default if later else 'error'}"


def boolean_rows(key):
    default, result = BOOLEANS[key]
    decides = "Yes" if result == "or" else "No"
    other = "No" if decides == "Yes" else "Yes"
    for offered in ("Yes", "No"):
        for ours in ("Yes", "No"):
            chosen = decides if decides in (offered, ours) else other
            yield f"target {key} {offered} {ours} {chosen} {chosen}"
    for bad in ("yes", "1", "-"):
        yield f"target {key} {bad} {other} Reject {default}"
    for ours in ("Yes", "No"):
        for answered in ("Yes", "No"):
            wrong = ours == decides and answered != decides
            yield f"initiator {key} {ours} {answered} {'error' if wrong else answered}"
        # Who says what decides knows the result, answered or not. RFC 7143 section 6.2.2.
        known = decides if ours == decides else default
        yield f"initiator {key} {ours} Irrelevant {known}"
        yield f"initiator {key} {ours} True error"


def list_rows(key):
    words = LISTS[key]
    default = words[0]
    many = [[word] for word in words] + [words, words[::-1], words[1:] + words[:1]]
    for offered in many:
        for ours in many:
            chosen = next((word for word in offered if word in ours), None)
            # A digest that is not wanted ends the login; there is no such rule for the other.
            ends = chosen is None and key != "TaskReporting" and default not in ours
            result = "error" if ends else chosen or default
            yield f"target {key} {','.join(offered)} {','.join(ours)} {chosen or 'Reject'} {result}"
    yield f"target {key} X-other,{words[-1]} {','.join(words)} {words[-1]} {words[-1]}"
    yield f"target {key} {words[-1].lower()} {','.join(words)} Reject {default}"
    for answered in words + [words[-1].lower(), ",".join(words)]:
        yield (f"initiator {key} {','.join(words)} {answered} "
               f"{answered if answered in words else 'error'}")
    if key != "TaskReporting":
        yield f"initiator {key} CRC32C None error"
        yield f"initiator {key} CRC32C Reject error"
        yield f"initiator {key} None CRC32C error"
        yield f"initiator {key} None,CRC32C Reject None"
        yield f"initiator {key} None,CRC32C NotUnderstood error"
    else:
        # RFC 7143 section 13.23: who proposes anything proposes these two as well.
        yield f"initiator {key} FastAbort RFC3720 RFC3720"
        yield f"initiator {key} FastAbort ResponseFence ResponseFence"
        yield f"initiator {key} FastAbort NotUnderstood RFC3720"


def number_values():
    good = [("0", 0), ("7", 7), ("18446744073709551615", 2**64 - 1), ("0x0", 0), ("0xfF", 255),
            ("0X10", 16), ("0x00000000000000000000ff", 255), ("0xffffffffffffffff", 2**64 - 1)]
    for written, value in good:
        yield f"number {written} {value}"
    for bad in ("18446744073709551616", "0x10000000000000000", "00", "01", "+1", "1e3", "0x", "x",
                "1.0", "0xg", "\u0661", "1_000"):
        yield f"number {bad} error"


def binary_values():
    dice = random.Random(7143)
    for length in (1, 2, 3, 4, 16, 255, 1024):
        value = bytes(dice.getrandbits(8) for _ in range(length))
        coded = base64.b64encode(value).decode()
        for written in ("0x" + value.hex(), "0X" + value.hex().upper(), "0b" + coded,
                        "0B" + coded.rstrip("=")):
            yield f"binary {length} {written} {value.hex()}"
            yield f"binary {length - 1} {written} error"
    yield "binary 2 0x123 0123"
    yield "binary 3 0x00000 000000"
    for bad in ("0x", "0b", "0b=", "0b====", "0xzz", "0b*", "12", "AQID", "0bAQ=D", "0bA", "0x1.",
                "0bA===", "0bAR==", "0bAQJ=", "0bAQ="):
        yield f"binary 16 {bad} error"


def negotiation():
    yield "# target     key offered ours answer result: what a target that wants `ours` makes of it"
    yield "# initiator  key ours answered result: what an initiator makes of an answer"
    yield "# declare    value result: MaxRecvDataSegmentLength of the other side"
    yield "# number     value result, binary bytes_max value result: values; - stands for nothing"
    for key in NUMBERS:
        yield from number_rows(key)
    for key in BOOLEANS:
        yield from boolean_rows(key)
    for key in LISTS:
        yield from list_rows(key)
    # RFC 7143 section 13.25 leaves No beside Reject for these, and only Reject for their intervals.
    for marker in ("IFMarker", "OFMarker"):
        yield f"target {marker} No - No -"
        yield f"target {marker} Yes - No -"
        yield f"target {marker} maybe - Reject -"
    for interval in ("IFMarkInt", "OFMarkInt"):
        yield f"target {interval} No - Reject -"
    for unknown in ("X-org.example.key", "X#key", "FutureKey", "Y.z-1+2@3_4"):
        yield f"target {unknown} 1 - NotUnderstood -"
    for wrong in ("CHAP_A", "SendTargets", "TargetAlias", "TargetPortalGroupTag"):
        yield f"target {wrong} None - error -"
    for constant in ("Reject", "Irrelevant", "NotUnderstood"):
        yield f"target MaxBurstLength {constant} 1024 error -"
        yield f"target X-org.example.key {constant} - error -"
    for value in (512, 8192, 2**24 - 1, "0x2000"):
        yield f"declare {value} {int(str(value), 0)}"
    for bad in (0, 511, 2**24, "x", "-", "0512"):
        yield f"declare {bad} error"
    yield from number_values()
    yield from binary_values()


def main():
    wrong = False
    for name, lines in (("pdus", pdus), ("logins", logins), ("negotiation", negotiation)):
        path = os.path.join(HERE, name + ".txt")
        content = "\n".join(lines()) + "\n"
        if "--check" not in sys.argv[1:]:
            with open(path, "w", encoding="utf-8") as out:
                out.write(content)
            continue
        with open(path, encoding="utf-8") as there:
            if there.read() != content:
                wrong = True
                print(f"{name}.txt is not what make_vectors.py writes", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

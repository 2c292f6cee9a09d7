#!/usr/bin/env python3
"""Writes chap.txt: known answers of CHAP (RFC 1994 section 4.1, RFC 7143 section 12.1.3).

Uses hashlib alone, so that it shares nothing with the crates. Run it in this folder:
    python3 make_chap.py > chap.txt
"""
import hashlib

HASHES = {5: hashlib.md5, 6: hashlib.sha1, 7: hashlib.sha256, 8: hashlib.sha3_256}
CASES = [
    (0, b"", bytes(1)),
    (1, b"secret", bytes(range(16))),
    (255, b"a longer secret of 26 char", bytes(range(32))),
    (128, bytes(range(256)), bytes(255 - i % 256 for i in range(1024))),
    (7, "Pa\u00dfwort".encode(), b"\xff" * 20),
]

print("# CHAP_A  CHAP_I  secret  CHAP_C  CHAP_R; the last three in hex, - for nothing")
for number, algorithm in HASHES.items():
    for identifier, secret, challenge in CASES:
        answer = algorithm(bytes([identifier]) + secret + challenge).hexdigest()
        print(number, identifier, secret.hex() or "-", challenge.hex(), answer)

"""Sealed datagrams by docs/formats/export.md, with the cryptography library (OpenSSL).

Reads lines of standard input: `master HEX`, then `open HEX` (prints the datagram within, or `refused`) or
`seal IDENTITY SALT NUMBER TIME HEX` (prints the sealed datagram).
"""

import struct
import sys

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF


def derived(key, salt, info):
    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=info).derive(key)


def cipher(master, identity, salt):
    of_identity = derived(master, None, b"strata export identity 1" + identity)
    return AESGCM(derived(of_identity, salt, b"strata export run 1"))


def number_of(master):
    return derived(master, None, b"strata export key 1")[:4]


def opened(master, sealed):
    head, rest = sealed[:40], sealed[40:]
    magic, version, identity, reserved, key, salt, number, time = struct.unpack(
        "<2sB3sH4s16sQI", head
    )
    assert (magic, version, reserved) == (b"SE", 1, 0)
    if key != number_of(master):
        return None
    nonce = bytes(4) + struct.pack("<Q", number)
    try:
        return cipher(master, identity, salt).decrypt(nonce, rest, head)
    except InvalidTag:
        return None


def sealed(master, identity, salt, number, time, datagram):
    identity = identity.to_bytes(3, "little")
    head = struct.pack(
        "<2sB3sH4s16sQI", b"SE", 1, identity, 0, number_of(master), salt, number, time
    )
    nonce = bytes(4) + struct.pack("<Q", number)
    return head + cipher(master, identity, salt).encrypt(nonce, datagram, head)


def main():
    master = None
    for line in sys.stdin:
        match line.split():
            case ["master", key]:
                master = bytes.fromhex(key)
            case ["open", datagram]:
                found = opened(master, bytes.fromhex(datagram))
                print("refused" if found is None else found.hex())
            case ["seal", identity, salt, number, time, datagram]:
                fields = bytes.fromhex(salt), int(number), int(time), bytes.fromhex(datagram)
                print(sealed(master, int(identity), *fields).hex())


main()

"""Writes the vectors beside it with libsodium (PyNaCl 1.6) and nothing of ours: `python make.py`.

Secrets are digests of their names, so that every run writes the same files, but for the one box that libsodium seals with a
key of its own.
"""

import base64
import hashlib
import json
import pathlib
import struct
import uuid

from nacl.bindings import crypto_pwhash_ALG_ARGON2ID13, crypto_pwhash_alg
from nacl.public import Box, PrivateKey, SealedBox
from nacl.secret import SecretBox
from nacl.signing import SigningKey

HERE = pathlib.Path(__file__).parent


def secret(name, size=32):
    return hashlib.shake_256(name.encode()).digest(size)


def b64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def canonical(value):
    # Enough of RFC 8785 for what is here: no floats, names that sort alike by code points and by UTF-16.
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def signed(key, context, data):
    return key.sign(context.encode() + b"\0" + data).signature


def write(name, cases):
    (HERE / f"{name}.json").write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n")


class Member:
    def __init__(self, name):
        self.seed, self.box_secret = secret(name + " ed25519"), secret(name + " x25519")
        self.signing, self.boxes = SigningKey(self.seed), PrivateKey(self.box_secret)
        self.ed25519, self.x25519 = bytes(self.signing.verify_key), bytes(self.boxes.public_key)

    def secrets(self):
        return {"seed": self.seed.hex(), "box_secret": self.box_secret.hex()}

    def public(self):
        signature = signed(self.signing, "waybill-box-key-v1", self.x25519)
        return {
            "ed25519": self.ed25519.hex(),
            "x25519": self.x25519.hex(),
            "x25519_signature": b64url(signature),
        }


PLAINS = ["", "hello", "Ünïcode 😀 " * 3, "x" * 1000]
ALICE, BOB, CAROL = Member("alice"), Member("bob"), Member("carol")
MESH = uuid.UUID("0190a5b4-1c2d-7e3f-8a9b-0c1d2e3f4a5b")
INVITE = uuid.UUID("0190a5b4-1c2d-7e3f-8a9b-aaaaaaaaaaaa")
NOW = 1_700_000_000


def identities():
    write("identities", [
        {**member.secrets(), "public": member.public(), "key_id": hashlib.sha256(member.x25519).digest()[:8].hex()}
        for member in (ALICE, BOB, CAROL)
    ])


def boxes():
    cases = []
    for number, plain in enumerate(PLAINS):
        nonce = secret(f"box nonce {number}", 24)
        sealed = Box(ALICE.boxes, BOB.boxes.public_key).encrypt(plain.encode(), nonce)
        cases.append({"nonce": nonce.hex(), "plain": plain, "sealed": sealed.hex()})
    write("boxes", {"sender": ALICE.secrets(), "recipient": BOB.secrets(), "cases": cases})


def topics():
    key, cases = secret("topic key"), []
    for number, plain in enumerate(PLAINS):
        nonce = secret(f"topic nonce {number}", 24)
        cases.append({"nonce": nonce.hex(), "plain": plain, "sealed": SecretBox(key).encrypt(plain.encode(), nonce).hex()})
    write("topics", {"key": key.hex(), "cases": cases})


def sealed_keys():
    ephemeral = PrivateKey(secret("ephemeral"))
    key = secret("topic key")
    nonce = hashlib.blake2b(bytes(ephemeral.public_key) + BOB.x25519, digest_size=24).digest()
    ours = bytes(ephemeral.public_key) + Box(ephemeral, BOB.boxes.public_key).encrypt(key, nonce).ciphertext
    assert SealedBox(BOB.boxes).decrypt(ours) == key
    theirs = SealedBox(BOB.boxes.public_key).encrypt(key)
    write("sealed_keys", {
        "recipient": BOB.secrets(), "key": key.hex(), "ephemeral": bytes(ephemeral).hex(), "sealed": ours.hex(),
        "sealed_by_libsodium": theirs.hex(),
    })


def sealed_file(key, prefix, plain):
    chunk = 64 << 10
    pieces = [plain[at:at + chunk] for at in range(0, len(plain), chunk)] or [b""]
    sealed = b"\x01" + prefix
    for number, piece in enumerate(pieces):
        nonce = prefix + struct.pack(">Q", number) + bytes([number == len(pieces) - 1])
        sealed += SecretBox(key).encrypt(piece, nonce).ciphertext
    return sealed


def files():
    key, prefix, chunk = secret("file key"), secret("file prefix", 15), 64 << 10
    short, long = [], []
    for size in (0, 1, 100):
        plain = bytes(at % 251 for at in range(size))
        sealed = sealed_file(key, prefix, plain)
        short.append({"bytes": size, "sealed_bytes": len(sealed), "plain": plain.hex(), "sealed": sealed.hex()})
    for size in (chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 100):
        sealed = sealed_file(key, prefix, bytes(at % 251 for at in range(size)))
        long.append({"bytes": size, "sealed_bytes": len(sealed), "sealed_sha256": hashlib.sha256(sealed).hexdigest()})
    write("files", {"key": key.hex(), "prefix": prefix.hex(), "short": short, "long": long})


def passphrases():
    cases = []
    # libsodium knows one lane only, and takes memory in bytes.
    for passphrase, plain, passes, kib in (("correct horse", "keys", 1, 8), ("Ünïcode", "", 3, 64), ("p", "x" * 100, 2, 1024)):
        salt, nonce = secret(f"salt {passphrase}", 16), secret(f"nonce {passphrase}", 24)
        key = crypto_pwhash_alg(32, passphrase.encode(), salt, passes, kib << 10, crypto_pwhash_ALG_ARGON2ID13)
        head = b"WBPB\x01" + struct.pack(">III", kib, passes, 1) + salt + nonce
        sealed = head + SecretBox(key).encrypt(plain.encode(), nonce).ciphertext
        cases.append({"passphrase": passphrase, "plain": plain, "salt": salt.hex(), "memory_kib": kib, "passes": passes,
                      "key": key.hex(), "sealed": sealed.hex()})
    write("passphrases", cases)


def fingerprints():
    requests = [
        ("topic", "build", "", "next", None, b"hello"),
        ("topic", "build", "", "next", None, b""),
        ("topic", "build", "reply-1", "now", {}, b"hello"),
        ("dm", BOB.ed25519.hex(), "", "low", {"b": [1, "A", None, True], "a": {"ü": "é\n\""}}, "grüße".encode()),
        ("dm", BOB.ed25519.hex(), "", "next", None, bytes(range(256))),
        ("queue", "0190a5b4-1c2d-7e3f-8a9b-0c1d2e3f4a5b", "", "next", "text", b"x"),
        ("topic", "build", "", "next", None, b"hello\0"),
    ]
    cases = []
    for kind, reference, reply, priority, meta, body in requests:
        jcs = "" if meta is None else canonical(meta)
        text = "\0".join(["1", kind, reference, reply, priority, jcs, hashlib.sha256(body).hexdigest()])
        envelope = {"version": 1, "destination_kind": kind, "destination_ref": reference, "priority": priority,
                    "body": base64.b64encode(body).decode()}
        if reply:
            envelope["reply_to"] = reply
        if meta is not None:
            envelope["meta"] = meta
        cases.append({"envelope": envelope, "meta_jcs": jcs, "fingerprint": hashlib.sha256(text.encode()).hexdigest()})
    write("fingerprints", cases)


def messages():
    """What is within a box: canonical JSON, signed with all that it travels in, each part after its length."""
    digest = lambda text: hashlib.sha256(text.encode()).hexdigest()
    cases = []
    for envelope, client_id, body, meta in (
        ({"destination_kind": "dm", "destination_ref": BOB.ed25519.hex(), "key_id": "0102030405060708"}, "m-1", "hello", None),
        ({"destination_kind": "dm", "destination_ref": BOB.ed25519.hex(), "reply_to": "m-1", "priority": "now"}, "grüße 2", "",
         {"b": [1, "A", None, True], "a": {"ü": "é\n\""}}),
        ({"destination_kind": "topic", "destination_ref": "build", "epoch": 7, "priority": "low",
          "mentions": [BOB.ed25519.hex(), CAROL.ed25519.hex()]}, "m-3", "Ünïcode 😀\n\0", {}),
    ):
        parts = [str(MESH), ALICE.ed25519.hex(), envelope["destination_kind"], envelope["destination_ref"],
                 str(envelope.get("epoch", "")), client_id, envelope.get("reply_to", ""), envelope.get("priority", "next"),
                 ",".join(envelope.get("mentions", [])), "" if meta is None else digest(canonical(meta)), digest(body)]
        statement = b"".join(struct.pack(">Q", len(part.encode())) + part.encode() for part in parts)
        plain = {"version": 1, "from": ALICE.ed25519.hex(), "body": body,
                 "signature": b64url(signed(ALICE.signing, "waybill-message-v1", statement))}
        case = {"envelope": {"version": 1, "body": "", **envelope}, "client_message_id": client_id, "body": body}
        if meta is not None:
            plain["meta"] = case["meta"] = meta
        cases.append({**case, "plain": canonical(plain)})
    write("messages", {"sender": ALICE.secrets(), "mesh": str(MESH), "cases": cases})


def statements():
    """Everything that is signed, as texts that travel."""
    nonce = secret("challenge")
    challenge = signed(ALICE.signing, "waybill-challenge-v1", nonce + MESH.bytes + struct.pack(">q", NOW))
    method, target, body, request_nonce = "POST", "/mesh/v1/messages?x=%20y", b'{"a":1}', secret("request", 16).hex()
    parts = [method, target, str(MESH), str(NOW), request_nonce, hashlib.sha256(body).hexdigest()]
    signature = b64url(signed(ALICE.signing, "waybill-http-v1", "\0".join(parts).encode()))
    header = (f"Waybill-Member mesh={MESH},key={ALICE.ed25519.hex()},time={NOW},nonce={request_nonce},"
              f"signature={signature}")
    invite = json.dumps({
        "server": "http://127.0.0.1:7000", "mesh": str(MESH), "slug": "team", "invite_id": str(INVITE), "owner": ALICE.public(),
        "issuer": ALICE.ed25519.hex(), "uses": 1, "expires_at": "2023-11-15T22:13:20.000000Z", "plaintext": False,
    }, separators=(",", ":"))
    text = f"wbi_{b64url(invite.encode())}.{b64url(signed(ALICE.signing, 'waybill-invite-v1', invite.encode()))}"
    ask, ask_key = secret("join"), PrivateKey(secret("join box"))
    about = (ask + bytes(ask_key.public_key) + MESH.bytes + INVITE.bytes + BOB.ed25519 + BOB.x25519 + b"bob")
    boxed = Box(BOB.boxes, ask_key.public_key).encrypt(ask, secret("join nonce", 24))
    rotation = MESH.bytes + BOB.ed25519 + CAROL.ed25519 + CAROL.x25519
    write("statements", {
        "alice": ALICE.secrets(), "bob": BOB.secrets(), "carol": CAROL.secrets(), "mesh": str(MESH), "time": NOW,
        "challenge": {"nonce": nonce.hex(), "signature": b64url(challenge)},
        "request": {"method": method, "target": target, "body": body.decode(), "nonce": request_nonce,
                    "authorization": header},
        "invite": {"invite_id": str(INVITE), "text": text},
        "join": {"nonce": ask.hex(), "box_secret": bytes(ask_key).hex(), "name": "bob",
                 "proof": {"signature": b64url(signed(BOB.signing, "waybill-join-v1", about)),
                           "boxed": base64.b64encode(boxed).decode()}},
        "rotation": {"old": BOB.ed25519.hex(), "keys": CAROL.public(),
                     "old_signature": b64url(signed(BOB.signing, "waybill-rotation-v1", rotation)),
                     "new_signature": b64url(signed(CAROL.signing, "waybill-rotation-v1", rotation))},
    })


for make in (identities, boxes, topics, sealed_keys, files, passphrases, fingerprints, messages, statements):
    make()

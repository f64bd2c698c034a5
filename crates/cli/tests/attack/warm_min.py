"""One word or one bit of a warm file: a deleted item must not come back, expiry and flags not
change, and the server start again."""

import os, struct
from lib import SHARED, Server, connect, hurt

FILE = f"{SHARED}-warm"
DEAD, PIECE = 1 << 38, 1 << 36


def kv():
    words = ["--memory", "8M", "--memcached", "127.0.0.1:0", "--threads", "1", "--warm", FILE]
    server = Server("kv", *words)
    if not server.is_ready:
        hurt(f"with a damaged word it does not start: exit code {server.exit_code()}")
    return server


def ask(server, *commands):
    stream = connect(server.at["memcached"])
    answers = []
    for command in commands:
        stream.sendall(command)
        answer = b""
        while not answer.endswith((b"STORED\r\n", b"DELETED\r\n", b"END\r\n", b"EN\r\n", b"x\r\n")):
            part = stream.recv(65536)
            if not part:
                hurt(f"it ends the connection after {answer}")
            answer += part
        answers.append(answer)
    return answers


def word(at):
    return struct.unpack_from("<Q", image, at)[0]


def damaged(at, value, *commands):
    """What a server answers whose file had this word there."""
    copy = bytearray(image)
    struct.pack_into("<Q", copy, at, value)
    with open(FILE, "wb") as file:
        file.write(copy)
    server = kv()
    answers = ask(server, *commands)
    server.kill()
    return answers


server = kv()
ask(
    server,
    b"set long 0 0 150000\r\n" + b"v" * 150000 + b"\r\n",
    b"set gone 0 0 6\r\nsecret\r\n",
    b"set f 5 100000 1\r\nx\r\n",
    b"delete gone\r\n",
)
server.kill()
with open(FILE, "rb") as file:
    image = file.read()

header = image.index(b"gonesecret") - 8
while word(header) & 0xFFFF_FFFF != 6 << 16 | 4:
    header -= 8
if b"secret" in damaged(header, word(header) & ~DEAD, b"get gone\r\n")[0]:
    hurt("a deleted item is back")

meta = image.index(b"fx", 2 << 16) - 8
for bit in 0, 52:
    found = damaged(meta, word(meta) ^ 1 << bit, b"mg f f t v\r\n")[0]
    if found != b"EN\r\n":
        hurt(f"flags or expiry are others: {found}")

for at in range(2 << 16, len(image) - 24, 8):
    is_last = word(at) & PIECE and word(at) & 0xFFFF == 0 and word(at + 8) == 0
    if is_last and image[at + 16 : at + 24] == b"v" * 8:
        # A further piece, in a segment that is not there.
        damaged(at + 8, 4096 << 13 | 1 << 36, b"get long\r\n")
        break
else:
    hurt("the last piece of the long value is not found")
os.unlink(FILE)

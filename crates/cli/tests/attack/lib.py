"""Shared by the attacks beside it, which `attack.rs` runs: servers on loopback, and their messages
made by hand.

An attack ends with 0 if rackpool gave the right answer, and else with 1 and a sentence (`hurt`).
RACKPOOL_BIN names the program, RACKPOOL_WIRE_VERSION the version of the messages that it speaks.
"""

import atexit, ctypes, glob, os, random, shutil, signal, socket, struct, subprocess, sys, tempfile
import time

BINARY = os.environ["RACKPOOL_BIN"]
WIRE_VERSION = int(os.environ["RACKPOOL_WIRE_VERSION"])
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("RACKPOOL_")}
# Another user, who starts in a directory that everybody may enter.
NOBODY = {"user": "nobody", "cwd": "/"}
# How long an attack may take, and how long what is served at once may on a busy machine, seconds.
WITHIN = 100
SOON = 8

SCRATCH = tempfile.mkdtemp(prefix="rackpool-attack-")
DISK = f"{SCRATCH}/disk"
SHARED = f"/dev/shm/{os.path.basename(SCRATCH)}"
children = []


def hurt(sentence):
    sys.exit(f"hurt: {sentence}")


@atexit.register
def clean_up():
    for child in children:
        child.kill()
        child.wait()
    for path in glob.glob(f"{SHARED}*"):
        os.unlink(path)
    if os.path.ismount(DISK):
        subprocess.run(["umount", "--lazy", DISK])
    shutil.rmtree(SCRATCH, ignore_errors=True)


signal.signal(signal.SIGALRM, lambda *_: hurt(f"it took longer than {WITHIN} s"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
signal.alarm(WITHIN)


def start(words, **options):
    child = subprocess.Popen(words, stdout=subprocess.PIPE, **options)
    children.append(child)
    return child


class Server:
    """A server of rackpool: `is_ready`, where it listens, and what it said in its log."""

    def __init__(self, *words, log=None, env={}):
        self.log = log or tempfile.mktemp(prefix="log-", dir=SCRATCH)
        with open(self.log, "ab") as stderr:
            env = {**ENVIRONMENT, **env}
            self.child = start([BINARY, *words], stderr=stderr, stdin=subprocess.DEVNULL, env=env)
        self.pid = self.child.pid
        ready = self.child.stdout.readline().decode().split()
        self.is_ready = ready[:1] == ["ready"]
        self.addr = ready[1] if self.is_ready else None
        self.at = dict(word.split("=", 1) for word in ready[1:] if "=" in word)

    def said(self):
        return open(self.log, errors="replace").read().strip()

    def kill(self):
        self.child.kill()
        self.child.wait()

    def stop(self):
        """Its exit code after SIGTERM; None if it goes on."""
        self.child.terminate()
        return self.exit_code()

    def exit_code(self):
        try:
            return self.child.wait(SOON)
        except subprocess.TimeoutExpired:
            return None


def master(*words, state=f"{SCRATCH}/state", listen="127.0.0.1:0", **options):
    return Server("master", "--listen", listen, "--state", state, *words, **options)


def daemon(of, *words, rack=0, memory="heap:64M", **options):
    words = ["--rack", str(rack), "--master", of.addr, "--memory", memory, *words]
    return Server("daemon", *words, **options)


def shell(of, command, rack=0):
    """What a new client is answered; None if that is an error, and the error."""
    words = [BINARY, "shell", "--rack", str(rack), "--master", of.addr]
    words += ["--timeout-ms", str(SOON * 1000), "-c", command]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT)
    return (done.stdout.strip() if done.returncode == 0 else None), done.stderr.strip()


def served(of, what, command="alloc 64 local", rack=0):
    """The answer to a new client, who has to get one."""
    answer, error = shell(of, command, rack)
    if answer is None:
        hurt(f"{what}, a new client gets: {error}")
    return answer


def connect(text, send=b"", timeout=SOON):
    host, port = text.rsplit(":", 1)
    try:
        stream = socket.create_connection((host, int(port)), timeout)
    except ConnectionRefusedError:
        hurt(f"nothing listens at {text} any more")
    stream.sendall(send)
    return stream


def cpu_share(pid, seconds=1.0):
    """The part of a processor that a process takes."""

    def ticks():
        fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(seconds)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


def resident_mib(pid):
    status = open(f"/proc/{pid}/status").read()
    return int(status.split("VmRSS:")[1].split()[0]) >> 10


def small_disk(bytes):
    """A disk that only this process and its children see, and that ends with them."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x20000) != 0:  # CLONE_NEWNS
        sys.exit(f"no mount namespace: {os.strerror(ctypes.get_errno())}")
    os.mkdir(DISK)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={bytes}", "tmpfs", DISK], check=True)


def fill(path, step):
    try:
        with open(path, "ab", buffering=0) as file:
            while True:
                file.write(b"#" * step)
    except OSError:
        pass


# Messages: a number is in groups of 7 bits, the lowest first (postcard).


def number(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def frame(payload):
    return struct.pack("<I", len(payload)) + payload


def master_hello():
    return frame(number(1) + number(0) + number(WIRE_VERSION))


def fabric_hello():
    return b"rackwire" + struct.pack("<I", 2) + bytes(20)


def control_name(pid):
    """The abstract name at which a daemon listens for clients."""
    links = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            pass
    own = {link[8:-1] for link in links if link.startswith("socket:[")}
    for line in open("/proc/net/unix"):
        words = line.split()
        listens = len(words) > 7 and words[6] in own and int(words[3], 16) & 0x10000
        if listens and words[7].startswith("@"):
            return words[7][1:]
    sys.exit("the daemon listens at no abstract name")


def join(name):
    """Joins a daemon: the connection, and the descriptors that the client was given."""
    conn = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    conn.settimeout(SOON)
    conn.connect(b"\0" + name.encode())
    session = random.getrandbits(63) | 1
    # No slot to resume, not only to read, the first hello.
    conn.send(number(WIRE_VERSION) + number(session) + b"\0\0\1")
    welcome, fds, _, _ = socket.recv_fds(conn, 16384, 8)
    if welcome[:1] != b"\0":
        sys.exit(f"not let in: {welcome!r}")
    return conn, fds

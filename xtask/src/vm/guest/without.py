#!/usr/bin/python3
# rig-without NUMBER COMMAND...: the command takes for done what it asks of the system call of that
# number, which does nothing.
import ctypes, os, struct, sys

number, command = int(sys.argv[1]), sys.argv[2:]
words = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000), (0x06, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *word) for word in words))
head = struct.pack("HxxxxxxP", len(words), ctypes.addressof(program))
if ctypes.CDLL(None, use_errno=True).prctl(22, 2, ctypes.c_char_p(head), 0, 0) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(command[0], command)

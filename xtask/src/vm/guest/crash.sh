#!/bin/bash
# rig-crash: ends this guest as a lost host does, at once and without a word to anybody. That this
# was wanted is noted for the rig.
: > /rig/crashed.$RIG_ID; echo b > /proc/sysrq-trigger; sleep 60

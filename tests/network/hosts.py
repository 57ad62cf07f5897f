"""Hosts of their own on one machine: network namespaces whose packets pass through this program, which delays some and
loses others. It needs root and `ip` (iproute2), no support for emulated networks in the kernel.

    python3 tests/network/hosts.py --prefix test --hosts 3 --delay-ms 20 --loss 0.01 [--seed 1]

makes the namespaces test0, test1 and test2 with the addresses 10.88.0.1, 10.88.0.2 and 10.88.0.3, prints `ready`, and
removes them when its standard input ends. Delay and loss are those of one direction.
"""

import argparse
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
MTU = 1500
# Packets on their way; a full network loses the next one, as real ones do.
QUEUE = 4096


def run(*command):
    subprocess.run(command, check=True)


def tun(namespace, address):
    """A network interface of a namespace, as a file of its packets."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    other = os.open(f"/var/run/netns/{namespace}", os.O_RDONLY)
    if libc.setns(other, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", b"host0", IFF_TUN | IFF_NO_PI))
    if libc.setns(own, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot return")
    os.close(own)
    os.close(other)
    for command in (
        ["addr", "add", f"{address}/24", "dev", "host0"],
        ["link", "set", "dev", "host0", "mtu", str(MTU), "txqueuelen", "2000", "up"],
        ["link", "set", "dev", "lo", "up"],
    ):
        run("ip", "-n", namespace, *command)
    return device


def carry(devices, delay, loss, chance):
    """Carries packets between the devices, by address, until the standard input ends."""
    waiting = []
    number = 0
    by_file = {device: address for address, device in devices.items()}
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([*by_file, sys.stdin], [], [], timeout)
        if sys.stdin in readable and not sys.stdin.read(1):
            return
        now = time.monotonic()
        for device in readable:
            if device is sys.stdin:
                continue
            for _ in range(64):
                try:
                    packet = os.read(device, 65536)
                except BlockingIOError:
                    break
                is_ip4 = len(packet) >= 20 and packet[0] >> 4 == 4
                if not is_ip4 or packet[16:20] not in devices:
                    continue
                if len(waiting) < QUEUE and chance.random() >= loss:
                    number += 1
                    heapq.heappush(waiting, (now + delay, number, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            packet = heapq.heappop(waiting)[2]
            try:
                os.write(devices[packet[16:20]], packet)
            except OSError:
                pass  # the host's queue is full: lost


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    names = [f"{arguments.prefix}{index}" for index in range(arguments.hosts)]
    made = []
    try:
        devices = {}
        for index, name in enumerate(names):
            run("ip", "netns", "add", name)
            made.append(name)
            address = f"10.88.0.{index + 1}"
            devices[bytes(map(int, address.split(".")))] = tun(name, address)
        print("ready", flush=True)
        carry(devices, arguments.delay_ms / 1000, arguments.loss, random.Random(arguments.seed))
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)


if __name__ == "__main__":
    main()

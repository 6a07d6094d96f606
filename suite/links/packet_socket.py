"""Packet sockets (AF_PACKET) that carry frames whole: with the offload header of virtio in front (PACKET_VNET_HDR).

A TCP segment of 64 KiB passes as one frame and an unfinished checksum stays unfinished, so that nothing has to be switched
off on the interfaces, and few system calls carry many bytes. Needs CAP_NET_RAW in the namespace.
"""

from __future__ import annotations

import socket
import sys

MAX_FRAME_BYTES = 70_000  # 64 KiB of segments, Ethernet header, offload header
BUFFER_BYTES = 8 << 20  # of a socket; the kernel gives less where net.core.rmem_max says so

# <linux/if_packet.h>, <asm-generic/socket.h>
ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_STATISTICS, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 6, 15, 23
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33


class PacketSocketError(RuntimeError):
    """There can be no packet socket; the message says what to do."""


def open_interface(name: str, receives: bool = True) -> socket.socket:
    """A packet socket on interface `name`, for frames with offload headers. Raises PacketSocketError.

    receives: it is given the frames that arrive at the interface; otherwise it is for sending alone.
    """
    try:
        # protocol 0: nothing arrives before the socket is bound to its interface
        one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except OSError as error:
        raise PacketSocketError(
            f"no packet socket ({error.strerror}): run as root of a network namespace, as in `unshare -Urn`"
        ) from error
    try:
        one.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        one.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        _enlarge(one, SO_RCVBUFFORCE, socket.SO_RCVBUF)
        _enlarge(one, SO_SNDBUFFORCE, socket.SO_SNDBUF)
        one.bind((name, ETH_P_ALL if receives else 0))
        one.setblocking(False)
    except OSError as error:
        one.close()
        raise PacketSocketError(
            f"interface {name}: {error.strerror}; `ip link` in the same namespace says what there is"
        ) from error
    return one


def _enlarge(one: socket.socket, force: int, polite: int) -> None:
    """A buffer of `BUFFER_BYTES`, or as much as somebody without the machine's CAP_NET_ADMIN may have."""
    try:
        one.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)
    except PermissionError:
        one.setsockopt(socket.SOL_SOCKET, polite, BUFFER_BYTES)


def kernel_drops(one: socket.socket) -> int:
    """Frames the kernel had no room for since the last reading."""
    return int.from_bytes(one.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)[4:8], sys.byteorder)

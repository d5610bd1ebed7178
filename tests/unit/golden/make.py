#!/usr/bin/env python3
"""Write the golden segment heads next to this file, from the written format alone.

Nothing of the library is used: the tests compare what it writes with these bytes. Run it only when
the format changes on purpose, and say so in the change log.
"""
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
PAGE = 4096


def up(value, unit):
    return (value + unit - 1) // unit * unit


def dora_head(text, data_offset, ipc_flag=0, generation=2):
    """The 256 bytes that dora writes, and the JSON behind them up to the payload."""
    head = b"DORADMA\0" + struct.pack("<QQQ", len(text), data_offset, ipc_flag)
    head += bytes(64) + struct.pack("<Q", generation) + bytes(152)
    return (head + text).ljust(data_offset, b"\0")


def own_head(text, dtype, ndim, slots, slot_bytes, policy, leases, flags, creator, uid_tail):
    gens = 256 + up(len(text), 256)
    counters = gens + up(8 * (1 + slots), 64)
    records = counters + 256
    data = up(records + 256 * slots, PAGE)
    stride = up(max(slot_bytes, 1), PAGE)
    generation = 0 if slots == 1 else 1
    head = bytearray(dora_head(text, data, generation=generation))
    geometry = b"TBUSGEO1" + struct.pack(
        "<IIIIQQQQQQQ", 1, flags, slots, policy, stride, slot_bytes, gens, counters, records,
        data + stride * slots, creator)
    geometry += struct.pack("<Q", creator) + uid_tail + struct.pack("<IiII", dtype, ndim, leases, 256)
    head[104:104 + len(geometry)] = geometry
    return bytes(head)


def metadata(size, dtype, shape):
    return json.dumps(
        {"size": size, "dtype": dtype, "shape": shape, "pinned_type": "cpu"}).encode()


def dlpack(code, bits):
    return code | bits << 8 | 1 << 16


def write(name, data):
    (HERE / name).write_bytes(data)


CREATOR = 0x1122334455667788
TAIL = bytes(range(0xA0, 0xA8))

write("own_int64_1_slot.bin", own_head(
    metadata(15000 * 512 * 8, "torch.int64", [15000 * 512]), dlpack(0, 64), 1, 1, 15000 * 512 * 8,
    0, 4, 0, CREATOR, TAIL))
write("own_uint8_3_slots.bin", own_head(
    metadata(1080 * 1920 * 3, "torch.uint8", [1080, 1920, 3]), dlpack(1, 8), 3, 3, 8000000,
    1, 7, 1, CREATOR, TAIL))

# What dora's node writes for [2, 3] float32, payload included; and its mirror of it on another machine.
write("dora_node.bin", dora_head(metadata(24, "torch.float32", [2, 3]), 512) + bytes(range(24)))
mirror = json.dumps(
    {"dtype": "torch.float32", "pinned_type": "cpu",
     "sender_shmem": "dora_pool_A_5f0e_sender_node_12345", "shape": [2, 3], "size": 24},
    separators=(",", ":"), sort_keys=True).encode()
write("dora_mirror.bin", dora_head(mirror, 256 + len(mirror), generation=1) + bytes(24))
gpu = json.dumps(
    {"size": 24, "dtype": "torch.float32", "shape": [2, 3], "pinned_type": "cuda"}).encode()
gpu_head = bytearray(dora_head(gpu, 512, ipc_flag=1))
gpu_head[32:96] = bytes(range(64))
write("dora_gpu.bin", bytes(gpu_head))

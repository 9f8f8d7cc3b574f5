"""Another process on the card: holds memory, and with `--work` the card's time as well."""

import argparse
import time

import torch

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--leave-gb", type=float, default=0.0, help="hold all but this, in place of --gb")
    parser.add_argument("--work", action="store_true")
    args = parser.parse_args()
    free, _ = torch.cuda.mem_get_info()
    size = free - int(args.leave_gb * 2**30) if args.leave_gb else int(args.gb * 2**30)
    held = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
    left = torch.randn(4096, 4096, device="cuda") if args.work else None
    print("ready", flush=True)
    while True:
        if left is None:
            time.sleep(1)
            continue
        for _ in range(50):
            left = torch.nn.functional.normalize(left @ left)
        torch.cuda.synchronize()

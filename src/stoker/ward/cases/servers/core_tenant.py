"""Another process on one core: busy for as long as it lives."""

import os
import sys

if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[1])})
    print("ready", flush=True)
    number = 1
    while True:
        number = number * 1103515245 % 2147483647

"""Scripts of several ranks on this machine, as their users start them."""

import sys


def torchrun(ranks: int) -> tuple[str, ...]:
    """The words before a script's. The port is chosen by who listens on it, so nobody else has it."""
    return (
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
        "--nproc-per-node", str(ranks),
    )  # fmt: skip

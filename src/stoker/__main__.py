"""`python -m stoker`, which is also how torchrun starts it: `torchrun … -m stoker run train.py`."""

from stoker.cli import main

if __name__ == "__main__":
    main()

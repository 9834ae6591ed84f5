"""`python -m entrostat`, and so `accelerate launch -m entrostat`."""

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m bai_agent`: the same as `bai-agent`, for a plain tree that was never installed."""

from bai_agent.cli import main

if __name__ == "__main__":
    main()

"""`python -m bai_agent`: the same as `bai-agent`, for a source tree that is not installed."""

from bai_agent.cli import main

if __name__ == "__main__":
    main()

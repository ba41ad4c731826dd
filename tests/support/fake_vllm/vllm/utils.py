"""Where older versions have their argument parser."""

from argparse import ArgumentParser


class FlexibleArgumentParser(ArgumentParser):
    """vLLM's parser, without what is its own."""

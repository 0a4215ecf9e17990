"""Hugging Face transformers on PyTorch, bf16, static batches of up to 128. usage: serve_hf.py MODEL THREADS"""
import sys

from serve import measured_by, serve

BATCH = 128


def load():
    import torch
    import transformers
    path, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    @torch.inference_mode()
    def generate(prompts, n_out):
        for at in range(0, len(prompts), BATCH):
            ids = torch.tensor(prompts[at:at + BATCH])
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n_out, min_new_tokens=n_out,
                                 do_sample=False)
            assert out.shape[1] == ids.shape[1] + n_out

    version = f"transformers {transformers.__version__}, PyTorch {torch.__version__}"
    return version, measured_by(generate, model.config.vocab_size)


if __name__ == "__main__":
    serve(load)

"""What transformers computes on a checkpoint: logits at every position of a prompt and a greedy continuation."""
import json
import re

import torch
import transformers
from transformers import AutoModelForCausalLM

GREEDY = 16
CANDIDATES = 384    # prompts tried; the one whose greedy continuation has the widest margins is kept
NUMBERS = 1200      # of logits stored for a dtype: fewer columns of the vocabulary where the prompt is long

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

# The one that knows of caps of scores.
EAGER = dict(attn_implementation="eager")


def hf_loader(path, **changes):
    """dtype -> a fresh model (RoPE's dynamic scaling keeps state, so no model serves two prompts)."""
    cls = getattr(transformers, json.loads((path / "config.json").read_text())["architectures"][0])
    return lambda dtype: cls.from_pretrained(path, dtype=dtype, local_files_only=True, **EAGER, **changes).eval()


def gguf_loader(path):
    return lambda dtype: AutoModelForCausalLM.from_pretrained(path, gguf_file="model.gguf", dtype=dtype, **EAGER).eval()


@torch.inference_mode()
def forward(model, ids):
    """(logits [batch, tokens, vocab] of the prompt, greedy ids [batch, GREEDY], their top-2 margins), all f32."""
    out = model(ids, use_cache=True)
    prompt_logits, step = out.logits.float(), out.logits[:, -1].float()
    chosen, margins = [], []
    for _ in range(GREEDY):
        top = step.topk(2)
        chosen.append(top.indices[:, 0])
        margins.append(top.values[:, 0] - top.values[:, 1])
        out = model(chosen[-1][:, None], past_key_values=out.past_key_values, use_cache=True)
        step = out.logits[:, -1].float()
    return prompt_logits, torch.stack(chosen, 1), torch.stack(margins, 1)


def choose_prompt(variant, load):
    """The prompt that leaves a correct implementation the most room: a near tie would test rounding, not the model.

    Continuations of many different tokens are preferred; a tied random model tends to repeat itself.
    """
    model = load(torch.float32)
    generator = torch.Generator().manual_seed(variant.seed)
    prompts = torch.randint(3, model.config.get_text_config().vocab_size, (CANDIDATES, variant.prompt), generator=generator)
    logits, greedy, margins = forward(model, prompts)
    least = margins.amin(1) / logits.abs().amax((1, 2))
    different = torch.tensor([len(set(row.tolist())) for row in greedy])
    for enough in (4, 3):
        order = torch.where(different >= enough, least, -1.0).topk(24).indices.tolist()
        ranked = [(rank(prompts[i:i + 1], logits[i], greedy[i], least[i].item(), load), i)
                  for i in order if different[i] >= enough]
        (_, margin, distance), i = max(ranked, default=((0, 0, 1), 0))
        if margin > 0.015 and distance < 0.012:
            return prompts[i:i + 1]
    raise SystemExit(f"{variant.name}: no prompt with clear margins; change its seed or its weights")


def rank(prompt, logits, greedy, margin, load):
    """(room, greedy margin, distance of transformers' bf16 from its f32), each over the largest logit."""
    short, greedy16, margins16 = forward(load(torch.bfloat16), prompt)
    largest = logits.abs().max()
    distance = ((short - logits).abs().max() / largest).item()
    if not torch.equal(greedy16[0], greedy):
        return -1.0, -1.0, distance
    margin = min(margin, (margins16.amin() / largest).item())
    return margin - 4 * distance, margin, distance


def record(logits, greedy, margins, columns):
    top = logits.topk(2)
    return {
        "largest": rounded(logits.abs().max()),
        "argmax": top.indices[:, 0].tolist(),
        "margin": rounded(top.values[:, 0] - top.values[:, 1]),
        "logits": rounded(logits[:, columns]),
        "last": rounded(logits[-1]),
        "greedy": greedy.tolist(),
        "greedy_margin": rounded(margins),
    }


def rounded(x):
    """To 6 decimals: a hundredth of the tightest tolerance, at logits of about 10."""
    if x.dim() == 0:
        return round(x.item(), 6)
    return [rounded(row) for row in x]


def check_power(variant, prompt, logits, out):
    """A variant must fail for a decoder that ignores what it is about."""
    largest = logits.abs().max()
    for changes in getattr(variant, "without", ()):
        model = hf_loader_changed(out, variant.config, changes)
        other = forward(model, prompt)[0][0]
        effect = ((other - logits).abs().max() / largest).item()
        assert effect > 0.05, f"{variant.name}: {changes} changes logits by only {effect:.3f} of the largest"


def hf_loader_changed(out, config, changes):
    from golden.variants import edit
    cls = getattr(transformers, config["architectures"][0])
    return cls.from_pretrained(out, config=cls.config_class(**edit(config, **changes)), dtype=torch.float32, **EAGER).eval()


def write(variant, out, load, checkpoint=None):
    """golden.json in `out`. `checkpoint`: what transformers reads, where it lies elsewhere."""
    prompt = choose_prompt(variant, load)
    exact, greedy, margins = forward(load(torch.float32), prompt)
    short, greedy16, margins16 = forward(load(torch.bfloat16), prompt)
    assert torch.equal(greedy, greedy16)
    check_power(variant, prompt, exact[0], checkpoint or out)
    columns = torch.linspace(0, exact.shape[-1] - 1, max(NUMBERS // variant.prompt, 6)).round().long().unique()
    largest = exact.abs().max()
    distance = ((exact - short).abs().max() / largest).item()
    golden = {
        "made_by": f"scripts/make_golden.py: transformers {transformers.__version__}, "
                   f"torch {torch.__version__.split('+')[0]}, CPU",
        "prompt": prompt[0].tolist(),
        "columns": columns.tolist(),
        "bf16_distance": round(distance, 6),
        "f32": record(exact[0], greedy[0], margins[0], columns),
        "bf16": record(short[0], greedy16[0], margins16[0], columns),
    }
    (out / "golden.json").write_text(compact(golden))
    print(f"largest logit {largest:5.2f}; of it: bf16 within {distance:.4f}, least greedy margin "
          f"{margins.min() / largest:.3f}; {len(set(greedy[0].tolist()))} different tokens")


def compact(golden):
    """JSON with a line for each position, so that a change can be read in a diff."""
    text = json.dumps(golden, indent=1)
    for depth in range(4, 1, -1):
        text = join_lists(text, depth)
    return text + "\n"


def join_lists(text, depth):
    """Puts lists of plain numbers whose items are indented by `depth` on one line."""
    return re.sub(r"\[\n {%d}([-\d.e,\s]*?)\n {%d}\]" % (depth, depth - 1),
                  lambda m: "[" + re.sub(r"\s+", "", m[1]).replace(",", ", ") + "]", text)

"""A byte-level BPE tokenizer of 304 ids with a ChatML template, and what transformers makes of some texts with it."""
import json

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

VOCABULARY = 304
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "A ship stows its cargo in the hold, and the ballast keeps it steady while the cargo moves.",
    "The scheduler decides what to compute next; the executor does it, and the tokens stream to the user.",
    "user assistant system: the weights of the model are on the disk, in the host, on the device.",
]
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful sailor.<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXTS = ["", "The hold", " the  cargo\n\nmoves", "naïve café: 日本語 🚢!", "x=1;\ty = 22 // 333", "<|im_start|>user\nhi<|im_end|>"]
CHATS = [
    [{"role": "user", "content": " Where is the cargo? "}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the hold?"},
     {"role": "assistant", "content": "Full."}, {"role": "user", "content": "And the ballast?"}],
]


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet,
                                  show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def write(out, template):
    """tokenizer.json, tokenizer_config.json, the template in it or in chat_template.jinja; and tokenizer_golden.json."""
    train().save(str(out / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>",
              "pad_token": "<|endoftext|>", "unk_token": None, "clean_up_tokenization_spaces": False,
              "model_max_length": 512}
    if template == "config":
        config["chat_template"] = TEMPLATE
    else:
        (out / "chat_template.jinja").write_text(TEMPLATE)
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_golden(out, AutoTokenizer.from_pretrained(out))


def write_golden(out, tokenizer):
    """Texts and their ids; chats, their rendered text and its ids."""
    texts = [{"text": t, "ids": tokenizer(t).input_ids} for t in TEXTS]
    chats = []
    for messages in CHATS:
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        chats.append({"messages": messages, "rendered": rendered, "ids": tokenizer(rendered).input_ids})
    golden = {"texts": texts, "chats": chats}
    (out / "tokenizer_golden.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")

//! Files to weights and text: checkpoints, tokenizers, chat templates and the one decoder.

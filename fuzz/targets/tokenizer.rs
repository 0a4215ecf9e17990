#![no_main]

// The tokenizers crate panics on some files, which is caught where it is called: only what gets out is a find.
libfuzzer_sys::fuzz_target!(init: std::panic::set_hook(Box::new(|_| ())), |bytes: &[u8]| model::fuzz::fuzz_tokenizer(bytes));

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| model::fuzz::fuzz_template(bytes));

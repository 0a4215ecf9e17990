//! The goldens' quantised checkpoints, as they are and broken.

use std::path::{Path, PathBuf};

use crate::Checkpoint;
use crate::file::RegularFile;
use crate::safetensors::read_header;
use crate::stored::Stored;
use crate::tensor::{LayerTensor, Tensor};
use crate::testing::{safetensors, write};

const ALL: [&str; 12] = [
    "gptq",
    "gptq-act-order",
    "gptq-bits",
    "awq",
    "compressed-packed",
    "compressed-int8",
    "compressed-fp8",
    "compressed-fp4",
    "fp8-blocks",
    "fp8-ministral3",
    "bnb-4bit",
    "bnb-8bit",
];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

type Tensors = Vec<(String, &'static str, Vec<u64>, Vec<u8>)>;

/// The tensors of a golden's file.
fn tensors(name: &str) -> Tensors {
    let file = RegularFile::open(&golden(name).join("model.safetensors")).expect("a file");
    let read = |entry: crate::safetensors::Entry| {
        let mut bytes = vec![0; entry.bytes as usize];
        file.read_at(entry.offset, &mut bytes).expect("readable");
        let kind = entry.stored.map_or_else(|other| other, |stored| stored.to_string());
        let known = ["F32", "F16", "BF16", "I32", "I64", "I8", "U8", "F8_E4M3", "F8_E8M0"];
        let kind = known.into_iter().find(|known| *known == kind).expect("a type that is known");
        (entry.name, kind, entry.dims, bytes)
    };
    read_header(&file).expect("a header").into_iter().map(read).collect()
}

/// A checkpoint with a golden's configuration and these tensors, all of it read: why it cannot be.
fn why_not(name: &str, tensors: &Tensors) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::copy(golden(name).join("config.json"), folder.path().join("config.json")).expect("copied");
    write(folder.path(), "model.safetensors", safetensors(tensors));
    let read = Checkpoint::open(folder.path()).and_then(|checkpoint| {
        checkpoint.tensors().try_for_each(|(tensor, info)| {
            let mut rows = vec![0; info.shape.rows() * info.row_bytes];
            checkpoint.read_rows(tensor, 0..info.shape.rows(), &mut rows)
        })
    });
    read.err().map(|error| error.to_string())
}

/// What is said of a golden with a tensor changed, or without it.
#[track_caller]
fn check_refused(name: &str, tensor: &str, change: impl Fn(&mut Tensors, usize), said: &str) {
    let mut all = tensors(name);
    let at = all.iter().position(|(name, ..)| name.ends_with(tensor)).expect("such a tensor");
    change(&mut all, at);
    let why = why_not(name, &all).expect("refused");
    assert!(why.contains(said), "{why}\nlacks {said:?}");
}

#[test]
fn numbers_stay_packed_where_blocks_hold_them() {
    use LayerTensor::{Down, Gate, K, O, Q, Up, V};
    let stored = |name, tensors: [LayerTensor; 5]| {
        let checkpoint = Checkpoint::open(&golden(name)).expect("a checkpoint");
        tensors.map(|tensor| checkpoint.info(Tensor::Layer(0, tensor)).expect("such a tensor").stored)
    };
    use Stored::{F32, Fp8, Q4_0, Q5_0, Q8_0};
    assert_eq!(stored("gptq", [Q, K, O, Up, Down]), [Q4_0; 5]);
    assert_eq!(stored("gptq-act-order", [Q, K, O, Up, Down]), [F32; 5]);
    // With zero points 8 bits are 9.
    assert_eq!(stored("gptq-bits", [Q, K, V, O, Down]), [F32, Q4_0, Q4_0, Q5_0, F32]);
    assert_eq!(stored("awq", [Q, K, O, Up, Down]), [Q5_0; 5]);
    assert_eq!(stored("compressed-packed", [Q, O, Gate, Up, Down]), [Q4_0, Q8_0, Q5_0, Q5_0, Q4_0]);
    assert_eq!(stored("compressed-int8", [Q, K, O, Up, Down]), [Q8_0, Q8_0, Q8_0, F32, Q8_0]);
    assert_eq!(stored("fp8-blocks", [Q, K, O, Up, Down]), [F32; 5]);
    // Groups of 32 inputs are no blocks of 64, nor are the 96 of the last.
    assert_eq!(stored("compressed-fp8", [Q, K, O, Up, Down]), [Fp8, Fp8, Fp8, Fp8, F32]);
    // Scales of 16 inputs, of 32 beside floats of 4 bits, and beside floats of 8.
    assert_eq!(stored("compressed-fp4", [Q, K, V, Up, Down]), [F32, Q5_0, F32, F32, F32]);
    assert_eq!(stored("bnb-4bit", [Q, K, O, Up, Down]), [F32; 5]);
    assert_eq!(stored("bnb-8bit", [Q, K, O, Up, Down]), [Q8_0; 5]);
}

#[test]
fn rows_are_the_same_however_many_are_read_together() {
    for name in ALL {
        let checkpoint = Checkpoint::open(&golden(name)).expect("a checkpoint");
        for (tensor, info) in checkpoint.tensors() {
            let rows = info.shape.rows();
            let mut whole = vec![0; rows * info.row_bytes];
            checkpoint.read_rows(tensor, 0..rows, &mut whole).expect("readable");
            for at_once in [1, 7, 33] {
                let mut parts = Vec::new();
                for first in (0..rows).step_by(at_once) {
                    let range = first..(first + at_once).min(rows);
                    let mut part = vec![0; range.len() * info.row_bytes];
                    checkpoint.read_rows(tensor, range, &mut part).expect("readable");
                    parts.extend(part);
                }
                assert!(parts == whole, "{name}: {tensor:?} by {at_once}");
            }
        }
    }
}

#[test]
fn what_a_matrix_lacks_is_named() {
    let without = |all: &mut Tensors, at: usize| _ = all.remove(at);
    for (name, part) in [
        ("gptq", "0.mlp.up_proj.scales"),
        ("gptq", "0.mlp.up_proj.qzeros"),
        ("awq", "1.self_attn.k_proj.qzeros"),
        ("compressed-packed", "0.mlp.down_proj.weight_shape"),
        ("compressed-packed", "0.mlp.down_proj.weight_scale"),
        ("compressed-int8", "0.mlp.down_proj.weight_scale"),
        ("compressed-fp8", "0.mlp.down_proj.weight_scale"),
        ("compressed-fp4", "0.mlp.down_proj.weight_scale"),
        ("compressed-fp4", "0.mlp.down_proj.weight_global_scale"),
        ("bnb-4bit", "0.mlp.down_proj.weight.absmax"),
        ("bnb-4bit", "0.mlp.down_proj.weight.quant_map"),
        ("bnb-4bit", "0.mlp.down_proj.weight.nested_absmax"),
        ("bnb-4bit", "0.mlp.down_proj.weight.quant_state.bitsandbytes__nf4"),
        ("bnb-8bit", "0.mlp.down_proj.SCB"),
    ] {
        check_refused(name, part, without, &format!("model.layers.{part}` is missing"));
    }
    check_refused(
        "fp8-blocks",
        "0.mlp.up_proj.weight_scale_inv",
        without,
        "up_proj.weight_scale` is missing",
    );
    check_refused("gptq", "0.mlp.up_proj.qweight", without, "`model.layers.0.mlp.up_proj.weight` is missing");
}

/// What is done to a tensor.
type Change<'a> = &'a dyn Fn(&mut Tensors, usize);

/// Half of a side is gone, with the bytes of it.
fn halved(side: usize) -> impl Fn(&mut Tensors, usize) {
    move |all, at| {
        let (_, _, dims, bytes) = &mut all[at];
        dims[side] /= 2;
        bytes.truncate(bytes.len() / 2);
    }
}

#[test]
fn parts_that_do_not_fit_are_named() {
    let turned = |all: &mut Tensors, at: usize| all[at].2.reverse();
    let (rows, columns) = (halved(0), halved(1));
    let doubled = |all: &mut Tensors, at: usize| {
        let (name, kind, dims, bytes) = all[at].clone();
        all.push((name.replace("weight_global_scale", "weight_scale_2"), kind, dims, bytes));
    };
    let exponents = |all: &mut Tensors, at: usize| all[at].1 = "U8";
    let ordered = |all: &mut Tensors, at: usize| all[at].3[0] = 1;
    let bytes_of = |all: &mut Tensors, at: usize| {
        let rows = all[at].2[0] as usize;
        (all[at].1, all[at].3) = ("U8", vec![127; rows]);
    };
    let nothing = |all: &mut Tensors, at: usize| all[at].3.fill(0);
    let far = |all: &mut Tensors, at: usize| all[at].3[..4].copy_from_slice(&99i32.to_le_bytes());
    let wrong: [(&str, &str, Change<'_>, &str); 21] = [
        ("gptq", "0.mlp.up_proj.qweight", &turned, "up_proj.qweight` is"),
        ("gptq", "0.mlp.up_proj.scales", &turned, "up_proj.scales` is"),
        ("awq", "0.mlp.up_proj.qzeros", &turned, "up_proj.qzeros` is"),
        ("compressed-packed", "0.mlp.down_proj.weight_packed", &turned, "down_proj.weight_packed` is"),
        ("compressed-packed", "0.mlp.gate_up_proj.weight_zero_point", &turned, "weight_zero_point` is"),
        ("fp8-blocks", "0.mlp.down_proj.weight_scale_inv", &turned, "down_proj.weight_scale_inv` is"),
        ("compressed-fp4", "0.mlp.down_proj.weight_packed", &rows, "down_proj.weight_scale` is"),
        ("compressed-fp4", "0.mlp.down_proj.weight_scale", &turned, "down_proj.weight_scale` is"),
        ("compressed-fp4", "0.mlp.down_proj.weight_global_scale", &doubled, "no such scale beside those"),
        ("compressed-fp4", "0.mlp.down_proj.weight_scale", &exponents, "no such scale beside those"),
        ("compressed-fp4", "0.self_attn.v_proj.weight", &exponents, "v_proj.weight_scale` is U8"),
        ("compressed-fp4", "0.self_attn.k_proj.weight_scale", &columns, "a scale for each 32 inputs"),
        ("bnb-8bit", "0.mlp.down_proj.weight_format", &ordered, "rows lie as they are"),
        ("bnb-8bit", "0.mlp.down_proj.SCB", &bytes_of, "down_proj.SCB` is U8"),
        ("compressed-fp4", "0.mlp.down_proj.weight_global_scale", &nothing, "a number above 0"),
        ("bnb-4bit", "0.mlp.down_proj.weight", &rows, "down_proj.weight` is U8 [1536, 1] of a matrix"),
        ("bnb-4bit", "0.mlp.down_proj.weight.absmax", &rows, "down_proj.weight.absmax` is"),
        ("bnb-4bit", "0.mlp.down_proj.weight.quant_map", &rows, "expected 16 numbers"),
        ("bnb-8bit", "0.mlp.down_proj.SCB", &rows, "down_proj.SCB` is"),
        ("gptq-act-order", "0.mlp.up_proj.g_idx", &far, "up_proj.scales` is"),
        ("compressed-packed", "0.mlp.down_proj.weight_shape", &far, "down_proj.weight_packed` is"),
    ];
    for (name, tensor, change, said) in wrong {
        check_refused(name, tensor, change, said);
    }
}

#[test]
fn what_a_state_says_of_its_codes_has_to_fit() {
    for (from, to, said) in [
        ("[64, 96]", "[96, 64]", "down_proj.weight` is"),
        ("[64, 96]", "[0, 96] ", "two sides"),
        ("\"blocksize\": 64", "\"blocksize\": 0 ", "blocksize"),
        ("\"blocksize\": 64", "\"blocksize\": 32", "down_proj.weight.absmax` is"),
        ("nested_blocksize\": 256", "nested_blocksize\": 64 ", "nested_absmax` is"),
        ("nested_offset", "nested_offses", "`nested_offset` is absent"),
        ("{", "[", "model.safetensors: model.layers.0.mlp.down_proj.weight.quant_state"),
    ] {
        check_refused(
            "bnb-4bit",
            "down_proj.weight.quant_state.bitsandbytes__nf4",
            |all, at| say(all, at, from, to),
            said,
        );
    }
}

/// Another word in a text.
fn say(all: &mut Tensors, at: usize, from: &str, to: &str) {
    let text = String::from_utf8(all[at].3.clone()).expect("a text");
    assert!(text.contains(from) && from.len() == to.len(), "{text}");
    all[at].3 = text.replace(from, to).into_bytes();
}

/// Of 96 scales that have scales themselves 64 have one, and the others another.
#[test]
fn scales_of_scales_are_of_so_many() {
    let up = "layers.0.mlp.up_proj.weight";
    let rows = |change: &dyn Fn(&mut Tensors)| {
        let (mut all, folder) = (tensors("bnb-4bit"), tempfile::tempdir().expect("a folder"));
        change(&mut all);
        std::fs::copy(golden("bnb-4bit").join("config.json"), folder.path().join("config.json"))
            .expect("copied");
        write(folder.path(), "model.safetensors", safetensors(&all));
        let checkpoint = Checkpoint::open(folder.path()).expect("a checkpoint");
        let mut rows = vec![0; 96 * 64 * 4];
        checkpoint.read_rows(Tensor::Layer(0, LayerTensor::Up), 0..96, &mut rows).expect("readable");
        rows.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect::<Vec<_>>()
    };
    let place = |all: &Tensors, end: &str| {
        let name = format!("model.{up}.{end}");
        all.iter().position(|(found, ..)| *found == name).expect("such a tensor")
    };
    let plain = rows(&|_| {});
    let called_floats = rows(&|all| {
        let at = all.iter().position(|(name, ..)| *name == format!("model.{up}")).expect("codes");
        (all[at].1, all[at].2) = ("BF16", vec![96 * 64 / 4, 1]);
    });
    assert!(plain == called_floats, "bytes are the same whatever they are called");
    let by_another_name = rows(&|all| {
        let at = place(all, "quant_state.bitsandbytes__nf4");
        all[at].0 = all[at].0.replace("nf4", "fp4");
    });
    assert!(plain == by_another_name, "what codes are their table says");
    let by_its_table = rows(&|all| {
        let at = place(all, "quant_map");
        all[at].3 = [0.3f32; 16].into_iter().flat_map(f32::to_le_bytes).collect();
    });
    for (row, alike) in plain.chunks(64).zip(by_its_table.chunks(64)) {
        // Its largest number is what a block is multiplied by.
        let largest = row.iter().fold(0.0, |most, x| f32::max(most, x.abs()));
        assert!(alike.iter().all(|x| *x == 0.3 * largest));
    }
    let nothing = rows(&|all| {
        let (state, scales) = (place(all, "quant_state.bitsandbytes__nf4"), place(all, "nested_absmax"));
        say(all, state, "nested_blocksize\": 256", "nested_blocksize\": 64 ");
        let one = all[scales].3.clone();
        (all[scales].2, all[scales].3) = (vec![2], [one, vec![0; 4]].concat());
    });
    assert_eq!(plain[..64 * 64], nothing[..64 * 64]);
    // What is left is what is added to all.
    let offsets: Vec<f32> =
        nothing[64 * 64..].chunks(64).map(|row| row.iter().fold(0.0, |a, x| f32::max(a, x.abs()))).collect();
    assert!(offsets.iter().all(|offset| *offset > 0.0 && *offset == offsets[0]), "{offsets:?}");
    assert_ne!(plain[64 * 64..], nothing[64 * 64..]);
}

#[test]
fn numbers_that_contradict_the_configuration_are_named() {
    let ones = |all: &mut Tensors, at: usize| all[at].3.fill(0x11);
    check_refused("gptq", "0.mlp.up_proj.qzeros", ones, "up_proj.qweight` has a zero point of its own");
    let full = |all: &mut Tensors, at: usize| all[at].3.fill(0xff);
    check_refused("gptq", "0.mlp.up_proj.scales", full, "up_proj.scales` holds NaN");
    check_refused("fp8-blocks", "0.mlp.up_proj.weight", full, "up_proj.weight` holds NaN");
    check_refused("gptq", "0.mlp.up_proj.bias", ones, "up_proj.bias` is not part of");
}

#[test]
fn exponents_have_a_type_of_their_own_too() {
    let mut all = tensors("compressed-fp4");
    let scales = all.iter_mut().filter(|(name, kind, ..)| name.ends_with("weight_scale") && *kind == "U8");
    assert_eq!(scales.map(|scale| scale.1 = "F8_E8M0").count(), 4);
    assert_eq!(why_not("compressed-fp4", &all), None);
}

/// Nothing that a header can say makes reading panic, or take what is not there.
#[test]
fn broken_parts_are_errors() {
    for name in ALL {
        let sound = tensors(name);
        assert_eq!(why_not(name, &sound), None, "{name}");
        let parts = sound.iter().enumerate().filter(|(_, (name, ..))| name.contains("layers.0.mlp"));
        for (at, (_, kind, dims, bytes)) in parts {
            let width = bytes.len() as u64 / dims.iter().product::<u64>().max(1);
            let count = bytes.len() as u64 / width;
            let all = dims.iter().product::<u64>();
            for dims in [
                vec![],
                vec![0],
                vec![all],
                vec![1, all],
                vec![all, 1],
                vec![2, all / 2],
                vec![all / 2, 1, 2],
            ] {
                let mut broken = sound.clone();
                broken[at].3.resize((dims.iter().product::<u64>() * width) as usize, 0);
                broken[at].2 = dims;
                why_not(name, &broken);
            }
            for other in ["F32", "I32", "I8", "U8", "I64", "F8_E4M3", "F8_E8M0", "BF16"]
                .into_iter()
                .filter(|other| other != kind)
            {
                let mut broken = sound.clone();
                let width = match other {
                    "I64" => 8,
                    "F32" | "I32" => 4,
                    "BF16" => 2,
                    _ => 1,
                };
                broken[at].1 = other;
                broken[at].3 = vec![0x11; (count * width) as usize];
                why_not(name, &broken);
            }
        }
    }
}

//! Every kernel through the run-time compiler, which needs no GPU: no warning, and a report of registers and spills.

use std::fmt::Write;
use std::path::Path;
use std::sync::Mutex;
use std::{env, fs, thread};

use cuda::module::{Heads, Module, Prefill};
use cuda::{Architecture, CudaError, compile};
use kernels::attention::KvDtype;
use kernels::linear::Format;
use kernels::linear::quant::Narrow;

/// For which all modules are compiled.
const MAIN: Architecture = Architecture(90);
/// For which one module of each kind is compiled; all modules if `BALLAST_NVRTC_ALL` is set, which takes minutes.
const OTHERS: [u32; 5] = [75, 80, 86, 89, 100];

/// For which two modules are compiled, by compilers from this version on, which know it.
const NEWEST: (Architecture, (i32, i32)) = (Architecture(120), (12, 8));

/// A few registers beside a loop do no harm; nor do a few more beside the sums of 32 rows in attention, which fill a warp's
/// registers, or where codes of 4 bits are unpacked beside them: of some 1300 instructions that a page takes then, three load what
/// was spilled.
fn spill_bytes_max(module: Module) -> usize {
    match module {
        Module::Attention(Heads { pages: KvDtype::Int4, head_dim: 80.., .. }) => 160,
        Module::Attention(Heads { head_dim: 80.., .. }) => 48,
        Module::Warpgroups { .. } => 0,
        _ => 32,
    }
}

fn one_of_each_kind() -> Vec<Module> {
    let mut all = vec![
        Module::Rows,
        Module::Sample,
        Module::Linear(Format::F32),
        Module::Linear(Format::Bf16),
        Module::Linear(Format::Narrow(Narrow::Int4)),
    ];
    for pages in [KvDtype::Bf16, KvDtype::F16, KvDtype::Fp8, KvDtype::Int4, KvDtype::F32] {
        let head_dim = if pages == KvDtype::F32 { 64 } else { 128 };
        all.extend([Module::Attention, Module::Sparse].map(|module| module(Heads::plain(pages, head_dim))));
    }
    all.push(Module::Attention(Heads { pages: KvDtype::Bf16, head_dim: 128, capped: true }));
    all
}

/// Bytes that a line of the compiler's report says are spilled.
fn spill_bytes(line: &str) -> usize {
    let before = line.split(" bytes spill stores").next().filter(|before| before.len() < line.len());
    before.and_then(|before| before.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

/// What is wrong with a module's machine code, and what the compiler reported.
fn examine(module: Module, architecture: Architecture) -> Result<(Vec<String>, String), CudaError> {
    let compiled = compile(module, architecture)?;
    let lines = || compiled.log.lines().map(str::trim);
    // Products of warpgroups that wait for each other, and registers that are not handed over, are told of as information.
    let warns =
        |line: &&str| ["warning", "serialized", "Performance Loss"].iter().any(|word| line.contains(word));
    let warned = lines().filter(warns);
    // Older tensor cores have no bf16, and heads of 256 fill a warp's registers: only these may spill.
    let may_spill = architecture < Architecture(80)
        || matches!(
            module,
            Module::Attention(Heads { head_dim: 256, .. }) | Module::Sparse(Heads { head_dim: 256, .. })
        );
    let spilled = lines().filter(|line| !may_spill && spill_bytes(line) > spill_bytes_max(module));
    let has = |kernel: &str| compiled.log.contains(&format!("Compiling entry function '{kernel}'"));
    let lacking = module.kernels().iter().filter(|kernel| !has(kernel));
    let lacking = lacking.map(|kernel| format!("{module} for {architecture} has no {kernel}"));
    let wrong = warned.chain(spilled).map(|line| format!("{module} for {architecture}: {line}"));
    // What the one warpgroup gives is what the two others take, of 168 each: with fewer they would wait for ever.
    let takes_turns = matches!(module, Module::Warpgroups { turns: true, .. });
    let handed_over = !takes_turns || compiled.log.contains("Used 168 registers");
    let short =
        (!handed_over).then(|| format!("{module} for {architecture} does not begin with 168 registers"));
    let wrong = wrong.chain(lacking).chain(short).collect();
    assert!(!compiled.cubin.is_empty(), "{module} for {architecture} has no machine code");
    let kept =
        |line: &&str| line.contains("entry function") || line.contains("spill") || line.contains("registers");
    let report = lines().filter(kept).fold(format!("{module} {architecture}\n"), |mut report, line| {
        let _ = writeln!(report, "  {line}");
        report
    });
    Ok((wrong, report))
}

#[test]
fn every_kernel_compiles_without_a_warning() {
    let others = OTHERS.map(Architecture).into_iter();
    let all = Module::all(Prefill::Tried).into_iter();
    let mut work: Vec<_> = all.map(|module| (module, MAIN)).collect();
    let of_others = || match env::var_os("BALLAST_NVRTC_ALL") {
        Some(_) => Module::all(Prefill::Warps),
        None => one_of_each_kind(),
    };
    work.extend(others.flat_map(|other| of_others().into_iter().map(move |module| (module, other))));
    if let Err(missing @ CudaError::Library { .. }) = compile(Module::Rows, MAIN) {
        assert!(env::var_os("BALLAST_REQUIRE_NVRTC").is_none(), "{missing}");
        eprintln!("skipped: {missing}");
        return;
    }
    if cuda::compiler_version().is_ok_and(|version| version >= NEWEST.1) {
        let modules = [
            Module::Linear(Format::Narrow(Narrow::Int4)),
            Module::Attention(Heads::plain(KvDtype::Int4, 128)),
        ];
        work.extend(modules.map(|module| (module, NEWEST.0)));
    }
    let (left, found) = (Mutex::new(work), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((module, architecture)) = { left.lock().unwrap().pop() } {
                    let result = examine(module, architecture);
                    found
                        .lock()
                        .unwrap()
                        .push(result.unwrap_or_else(|e| (vec![e.to_string()], String::new())));
                }
            });
        }
    });
    let (wrong, mut reports): (Vec<_>, Vec<_>) = found.into_inner().unwrap().into_iter().unzip();
    reports.sort();
    let report = Path::new(env!("CARGO_TARGET_TMPDIR")).join("registers.txt");
    fs::write(&report, reports.concat()).expect("the target folder can be written");
    println!("NVRTC {:?}; registers and spills: {}", cuda::compiler_version(), report.display());
    let wrong: Vec<String> = wrong.concat();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A GPU of tomorrow, whose driver compiles what today's compiler has made of the kernels; and one of long ago.
#[test]
fn devices_that_the_compiler_does_not_know() {
    let compiled = match compile(Module::Rows, Architecture(999)) {
        Err(missing @ CudaError::Library { .. }) => {
            assert!(env::var_os("BALLAST_REQUIRE_NVRTC").is_none(), "{missing}");
            eprintln!("skipped: {missing}");
            return;
        }
        compiled => compiled.unwrap(),
    };
    let text = String::from_utf8(compiled.cubin).expect("PTX is text");
    assert!(text.contains(".target sm_") && text.contains(".entry norm_rows"), "{text}");
    assert!(text.ends_with('\0'), "the driver looks for its end");
    let error = compile(Module::Rows, Architecture(20)).unwrap_err().to_string();
    assert!(error.contains("sm_20") && error.contains("older CUDA"), "{error}");
}

//! The conformance table, sampling and copies on a GPU, where there is one, and on its stand-in; what is said where there is none.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::stand_in::StandIn;
use crate::{sampling, scattered};
use cuda::args::CopyArgs;
use cuda::module::{Heads, Module};
use cuda::product::{Layout, Numbers, Places, Product};
use cuda::{CudaDevice, CudaError, Driver, Gpu, Launch, Lost, Recorded, Together, Work};
use kernels::attention::KvDtype;
use kernels::device::{Device, Dtype, Rows};
use kernels::queue::{self, Mark};
use kernels::table::{Case, Reach, conformance, random};
use kernels::{CpuDevice, Team};

/// A GPU, if there is one; says so if not.
fn open(bytes: usize) -> Option<CudaDevice> {
    match cuda::open(bytes) {
        Ok(device) => Some(device),
        Err(missing @ (CudaError::Library { .. } | CudaError::Unfit { .. } | CudaError::NoDevice { .. })) => {
            eprintln!("skipped: {missing}");
            None
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn tokens_are_those_of_the_cpus_sampler() {
    let Some(mut device) = open(sampling::BYTES) else { return };
    sampling::check(&mut device);
    sampling::check_errors(&mut device);
    sampling::check_many_under_way(&mut device);
}

#[test]
fn what_is_spread_arrives_and_is_collected() {
    let Some(mut device) = open(scattered::BYTES) else { return };
    scattered::check(&mut device);
    scattered::check_adopted(&mut device);
}

fn attends(case: &Case) -> bool {
    case.name.starts_with("attend") || case.name.starts_with("choose")
}

/// Runs the cases of the conformance table that `wanted` chooses.
fn agrees(wanted: impl Fn(&Case) -> bool) {
    let cases: Vec<Case> = conformance()
        .into_iter()
        .chain(random(2, 20))
        .filter(|case| case.reach == Reach::Everywhere)
        .filter(wanted)
        .collect();
    let most = cases.iter().map(|case| case.bytes).max().expect("cases");
    let Some(mut device) = open(most) else { return };
    // Side by side, where each would be compiled when a case comes to it. The others are another test's. Those that are emulated
    // are there from other tests, but for sizes of heads that no case has.
    if !StandIn::is_there() {
        let attention = cases.iter().all(attends);
        let modules = Module::all(device.driver().prefill()).into_iter();
        let own = modules.filter(|module| attention != matches!(module, Module::Sample | Module::Linear(_)));
        device.prepare_modules(&own.collect::<Vec<_>>()).unwrap();
    }
    let team = Arc::new(Team::new(2));
    let failed = cases.iter().filter_map(|case| {
        device.reset();
        let mut reference = CpuDevice::in_groups(case.bytes, Arc::clone(&team)).unwrap();
        let verdict = case.check_in_own_order(&mut device, &mut reference).unwrap();
        (!verdict.passed).then(|| format!("{}: {:e}", case.name, verdict.error))
    });
    let failed: Vec<String> = failed.collect();
    assert!(failed.is_empty(), "{} of {} cases fail:\n  {}", failed.len(), cases.len(), failed.join("\n  "));
}

#[test]
fn attention_agrees_with_the_reference() {
    agrees(attends);
}

#[test]
fn everything_else_agrees_with_the_reference() {
    agrees(|case| !attends(case));
}

/// The host looks at the device's clock later than it was read, by as much as it was kept from it: seldom by so much ten times.
#[test]
fn marks_know_when_they_were_reached() {
    let is_near = |_: usize| {
        let Some(mut device) = open(64 << 20) else { return true };
        let buf = device.take(32 << 20).unwrap();
        let bytes = vec![1; buf.bytes()];
        let begin = Instant::now();
        let mark = |number| Mark { queue: queue::current(), number };
        for number in 1..=3 {
            device.upload(&buf, &bytes);
            device.mark(mark(number));
        }
        device.reach(mark(3));
        let end = Instant::now();
        let times: Vec<Instant> = (1..=3).map(|number| device.when(mark(number)).expect("a time")).collect();
        assert!(times.windows(2).all(|two| two[0] < two[1]), "{times:?}");
        assert_eq!(device.when(mark(2)), None, "it is forgotten");
        device.enter(1, &[mark(3)]);
        device.wait();
        let slack = Duration::from_millis(50);
        println!("{times:?} between {begin:?} and {end:?}");
        begin < times[0] + slack && times[2] < end + slack
    };
    assert!((0..10).any(is_near));
}

#[test]
fn what_is_missing_is_named() {
    match cuda::open(1 << 20) {
        Ok(device) => assert!(device.driver().architecture() >= cuda::Architecture(75)),
        Err(error @ CudaError::Library { library, .. }) => {
            let text = error.to_string();
            assert!(text.contains(library) && text.contains("--device cpu"), "{text}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Prints what a device has.
#[test]
fn a_device_says_what_memory_it_has() {
    println!("memory: {:?}", cuda::memory());
}

#[test]
fn a_device_says_whether_its_memory_is_the_hosts() {
    let Some(stand_in) = StandIn::new() else { return };
    for (integrated, says) in [("0", "is_hosts: false"), ("1", "is_hosts: true")] {
        let settings = [("BALLAST_STAND_IN_INTEGRATED", integrated)];
        let told = stand_in.runs_with("gpu", &["a_device_says_what_memory_it_has"], &settings);
        assert!(told.contains(says), "{told}");
    }
}

/// Prints what computes large products.
#[test]
fn a_device_says_what_computes_large_products() {
    match cuda::open(1 << 20) {
        Ok(device) => {
            println!("products: {}, {:?}", device.driver().computes_products_by(), device.remarks())
        }
        Err(why) => println!("none opened: {why}"),
    }
}

/// Unless somebody asks for it.
#[test]
fn a_device_does_without_a_library_of_products() {
    let Some(stand_in) = StandIn::new() else { return };
    let says = ["a_device_says_what_computes_large_products"];
    let with = stand_in.runs_with("gpu", &says, &[]);
    assert!(with.contains("products: cuBLASLt 12.99.0, []"), "{with}");
    let stand_in = stand_in.without_products();
    let told = |said| stand_in.runs_with("gpu", &says, &[("BALLAST_CUDA_PRODUCTS", said)]);
    let (without, own, wanted) = (told(""), told("own"), told("cublaslt"));
    let remark = "products: own kernels, [\"large products are computed by own kernels, which are slower: libcublasLt.so";
    assert!(without.contains(remark), "{without}");
    assert!(own.contains("products: own kernels, []"), "{own}");
    assert!(wanted.contains("none opened: libcublasLt.so"), "{wanted}");
}

/// Prints how many blocks of decodes run side by side, and what they leave.
#[test]
fn a_device_says_what_runs_side_by_side() {
    let Some(device) = open(1 << 20) else { return };
    let module = Module::Attention(Heads::plain(KvDtype::Bf16, 64));
    println!("together: {:?}", device.driver().together(module, "attend_few", 128));
}

#[test]
fn what_blocks_leave_depends_on_their_registers() {
    let Some(stand_in) = StandIn::new() else { return };
    // On each of two multiprocessors two blocks, or three.
    for (registers, blocks, left) in [("255", 4, 0), ("241", 4, 2048), ("240", 4, 4096), ("168", 6, 1024)] {
        let settings = [("BALLAST_STAND_IN_REGISTERS", registers)];
        let told = stand_in.runs_with("gpu", &["a_device_says_what_runs_side_by_side"], &settings);
        let says = format!("together: {:?}", Together { blocks, registers_left: left });
        assert!(told.contains(&says), "{says}: {told}");
    }
}

/// Prints what comes of preparing a module, twice, and uses it.
#[test]
fn a_module_is_prepared_twice() {
    let Some(mut device) = open(1 << 20) else { return };
    for _ in 0..2 {
        println!("prepared: {:?}", device.driver().prepare(&[Module::Rows]).map_err(|e| e.to_string()));
    }
    let buf = device.take(64).unwrap();
    let x = Rows { buf, dtype: Dtype::F32, rows: 1, cols: 16 };
    device.upload(&x.buf, bytemuck::cast_slice(&[3.0_f32; 16]));
    device.cap(x, 2.0);
    device.view(&x.buf, &mut |bytes| {
        let capped = bytemuck::cast_slice::<u8, f32>(bytes);
        assert!(capped.iter().all(|x| (x - 2.0 * 1.5_f32.tanh()).abs() < 1e-6), "{capped:?}");
    });
}

#[test]
fn a_module_whose_kernels_are_not_found_is_loaded_again() {
    let Some(stand_in) = StandIn::new() else { return };
    let fails = [("BALLAST_STAND_IN_FAILS", "cuModuleGetFunction 3")];
    let told = stand_in.runs_with("gpu", &["a_module_is_prepared_twice"], &fails);
    let prepared = ["failed to find cap_rows: DriverError(CUDA_ERROR_OUT_OF_MEMORY", "prepared: Ok(())"];
    assert!(prepared.iter().all(|one| told.contains(one)), "{told}");
}

/// Prints what a look at its clock and a fetch come to, if it opens, and gives it back.
#[test]
fn a_device_is_given_back() {
    let opened = Gpu::open(0).and_then(|mut gpu| Ok((gpu.allocate(1 << 12)?, gpu)));
    let (there, gpu) = match opened {
        Ok(opened) => opened,
        Err(why) => return println!("none opened: {why}"),
    };
    println!("clock: {:?}", gpu.seconds_of(|| ()).map_err(|e| e.to_string()));
    let fetch = || gpu.fetched(gpu.fetch(there, 4), &mut |bytes| println!("fetched: {bytes:?}"));
    if let Err(why) = catch_unwind(AssertUnwindSafe(fetch)) {
        println!("lost: {}", why.downcast_ref::<Lost>().expect("a device that is lost").0);
    }
}

/// The stand-in ends a process that leaves it memory or events.
#[test]
fn a_device_that_fails_is_given_back_whole() {
    let Some(stand_in) = StandIn::new() else { return };
    let settings = |call| [("BALLAST_STAND_IN_FAILS", call)];
    let told = |call| stand_in.runs_with("gpu", &["a_device_is_given_back"], &settings(call));
    let sound = told("");
    assert!(sound.contains("clock: Ok(") && sound.contains("fetched: [0, 0, 0, 0]"), "{sound}");
    for (call, says) in [
        ("cuEventRecord 2", "none opened: the CUDA driver failed to tell the time"),
        ("cuEventCreate 9", "none opened: the CUDA driver failed to pin host memory"),
        ("cuMemHostAlloc 6", "none opened: the CUDA driver failed to pin host memory"),
        ("cuMemHostGetDevicePointer_v2 6", "none opened: the CUDA driver failed to pin host memory"),
        // Two of the clock, 152 of pieces, and one that waited until the memory was cleared.
        ("cuEventCreate 157", "failed to make an event"),
        ("cuMemcpyDtoHAsync_v2 1", "lost: the CUDA device failed to copy from it"),
    ] {
        let told = told(call);
        assert!(told.contains(says) && told.contains("OUT_OF_MEMORY"), "{call}: {told}");
    }
}

/// Kernels and a product that a graph is made of before anybody prepared them.
#[test]
fn a_graph_of_what_nobody_prepared_is_made() {
    let mut gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(missing) => return eprintln!("skipped: {missing}"),
    };
    let Some(room) = gpu.products().map(|library| library.room()) else {
        return eprintln!("skipped: there is no library of products");
    };
    let at = gpu.allocate((3 << 12) + room.workspace_bytes).unwrap();
    let of = |place: usize| at + (place << 12) as u64;
    let args = CopyArgs { from: of(0), to: of(1), quads: 8 };
    let args = bytemuck::bytes_of(&args);
    let copy = Launch { module: Module::Rows, kernel: "copy_quads", grid: [1, 1], threads: 64, args };
    let matrix = Layout { numbers: Numbers::Bf16, rows: 32, cols: 32, stride: 32, transposed: false };
    let a = Layout { transposed: true, ..matrix };
    let product = Product { a, b: matrix, d: matrix, adds: false, biased: false };
    let places = Places { a: of(0), b: of(1), d: of(2), bias: 0, workspace: of(3) };
    let graphs = gpu.graphs().expect("a driver that makes graphs");
    let recorded = graphs.record(&[Work::Kernel(copy), Work::Product(product, places)]);
    let Recorded::As(graph) = recorded else { panic!("{recorded:?}: {:?}", gpu.remarks()) };
    graphs.replay(graph);
    gpu.wait();
}

#[test]
fn the_same_on_a_stand_in() {
    let tests = [
        "tokens_are_those_of_the_cpus_sampler",
        "what_is_spread_arrives_and_is_collected",
        "attention_agrees_with_the_reference",
        "everything_else_agrees_with_the_reference",
        "marks_know_when_they_were_reached",
        "what_is_missing_is_named",
        "a_graph_of_what_nobody_prepared_is_made",
    ];
    if let Some(stand_in) = StandIn::new() {
        stand_in.runs("gpu", &tests);
        let spread = ["what_is_spread_arrives_and_is_collected"];
        stand_in.runs_with("gpu", &spread, &[("BALLAST_STAND_IN_ELSEWHERE", "1")]);
    }
}

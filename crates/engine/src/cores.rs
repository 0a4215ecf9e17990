//! How many threads compute, unless somebody says so: one for each core. Two of one core share its vector and tile units and its
//! nearest caches, and wait for each other at every barrier.

use std::fs;
use std::num::NonZero;
use std::thread;

use crate::config::DeviceChoice;

/// How many cores this process may use: of those whose processors it may run on, no more than its share of processor time makes up.
pub fn default_threads() -> usize {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let status = fs::read_to_string("/proc/self/status").ok();
    let cores = status.as_deref().and_then(allowed).and_then(|allowed| cores(&allowed, siblings));
    cores.map_or(processors, |cores| cores.min(processors))
}

/// The same beside a device: a GPU's lanes are threads that hand it its work and wait for it, and one that finds no core makes the GPU
/// wait. From four cores on they are left one, from eight on two.
pub fn default_threads_beside(device: DeviceChoice) -> usize {
    let cores = default_threads();
    match device {
        DeviceChoice::Cuda => cores - left_to_lanes(cores),
        DeviceChoice::Cpu | DeviceChoice::Virtual | DeviceChoice::Poisoned => cores,
    }
}

fn left_to_lanes(cores: usize) -> usize {
    (cores / 4).min(2)
}

/// The processors that a process may run on, from its `/proc/self/status`.
fn allowed(status: &str) -> Option<Vec<usize>> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().split(',').map(range).try_fold(Vec::new(), |mut all, range| {
        all.extend(range?);
        Some(all)
    })
}

/// `4` or `0-3`.
fn range(text: &str) -> Option<std::ops::RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Cores of these processors; none if that is not known of one of them. `siblings`: names the processors of its core, for each of them alike.
fn cores(processors: &[usize], siblings: impl Fn(usize) -> Option<String>) -> Option<usize> {
    let mut known = processors.iter().map(|cpu| siblings(*cpu)).collect::<Option<Vec<String>>>()?;
    known.sort_unstable();
    known.dedup();
    (!known.is_empty()).then_some(known.len())
}

fn siblings(cpu: usize) -> Option<String> {
    fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_of_two_threads_is_one() {
        // As Linux numbers them: four cores, whose second threads follow the first ones.
        let paired = |cpu: usize| Some(format!("{},{}\n", cpu % 4, cpu % 4 + 4));
        assert_eq!(cores(&[0, 1, 2, 3, 4, 5, 6, 7], paired), Some(4));
        assert_eq!(cores(&[1, 5, 6], paired), Some(2), "of those that it may use");
        let alone = |cpu: usize| Some(format!("{cpu}\n"));
        assert_eq!(cores(&[0, 1, 2], alone), Some(3));
        // Where the machine does not tell, nothing is guessed.
        assert_eq!(cores(&[0, 1], |cpu| (cpu == 0).then(|| "0".to_owned())), None);
        assert_eq!(cores(&[], alone), None);
    }

    #[test]
    fn allowed_processors_are_read_as_the_kernel_lists_them() {
        let of = |list: &str| {
            allowed(&format!("Name:\tballast\nCpus_allowed:\tff\nCpus_allowed_list:\t{list}\nThreads:\t1\n"))
        };
        assert_eq!(of("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(of("5"), Some(vec![5]));
        assert_eq!(of("0-"), None);
        assert_eq!(allowed("Name:\tballast\n"), None);
    }

    #[test]
    fn lanes_beside_a_gpu_have_cores_where_there_are_some() {
        assert_eq!([1, 3, 4, 7, 8, 64].map(left_to_lanes), [0, 0, 1, 1, 2, 2]);
        assert_eq!(default_threads_beside(DeviceChoice::Cpu), default_threads());
        assert!((1..=thread::available_parallelism().map_or(1, NonZero::get)).contains(&default_threads()));
    }
}

//! A lock whose holder panicked is taken all the same: what is guarded so is whole after every change, a panic is told elsewhere, and
//! what is left must end.

use std::sync::{Mutex, MutexGuard};

/// Waits for the lock, and takes it whoever panicked with it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

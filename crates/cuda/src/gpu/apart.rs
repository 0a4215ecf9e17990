//! A stream that notes down what it is asked for, and what may spoil its notes though another thread does it, of another device of this
//! process even: opening or closing the library, its searches, and what waits for a whole context.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static NOTES: RwLock<()> = RwLock::new(());

/// While this is there, a stream may note down.
pub(super) fn noting() -> RwLockWriteGuard<'static, ()> {
    NOTES.write().unwrap_or_else(PoisonError::into_inner)
}

/// While this is there, none does. Nobody takes a second one meanwhile.
pub(super) fn changing() -> RwLockReadGuard<'static, ()> {
    NOTES.read().unwrap_or_else(PoisonError::into_inner)
}

//! What this machine takes for the ops of a model, measured once and kept in a file.
//!
//! The ops are the decoder's own, on a device of the engine's kind, over as many of the model's layers as fill half a
//! gibibyte: weights come from memory as they do in a run, not from a cache. The drive is read as streamed weights are.
//! `policy::cost::Measured` makes costs of it.

mod key;
mod link;
mod overhead;
mod quick;
mod refresh;
mod rig;
mod take;
mod trial_file;
mod wake;

pub use key::ProfileKey;
pub use quick::{Rough, quick};
pub use refresh::{Drift, refresh};
pub use take::{STAGES, take};
pub use trial_file::TrialFile;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use policy::cost::{Correction, Tables};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

/// A profile as its file has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// What it is of.
    pub key: ProfileKey,
    /// What was measured.
    pub tables: Tables,
    /// How long measuring took, seconds.
    pub seconds: f64,
    /// What runs have found out since: whatever measures again begins again.
    #[serde(default, skip_serializing_if = "Correction::is_none")]
    pub correction: Correction,
}

/// A profile that is there and cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The system said no.
    #[error("the profile {path} cannot be read or written: {source}", path = path.display())]
    Io {
        /// Of the file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is not one, or has holes.
    #[error("{path} is not a whole profile ({why}): delete it, and run `ballast profile` again", path = path.display())]
    Broken {
        /// Of the file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

impl Profile {
    /// Where the profile of `key` is, or would be, in a folder of profiles.
    pub fn path(folder: &Path, key: &ProfileKey) -> PathBuf {
        folder.join(format!("{}.json", key.name()))
    }

    /// The profile of exactly this machine, these settings and this model, if one was taken.
    ///
    /// # Errors
    /// [`ProfileError`], if there is one and it cannot be used.
    pub fn find(folder: &Path, key: &ProfileKey) -> Result<Option<Profile>, ProfileError> {
        let path = Profile::path(folder, key);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(ProfileError::Io { path, source }),
        };
        let broken = |why: String| ProfileError::Broken { path: path.clone(), why };
        let profile: Profile = serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
        if let Some(fault) = profile.tables.fault() {
            return Err(broken(fault));
        }
        Ok((profile.key == *key).then_some(profile))
    }

    /// The same, if it was kept at `oldest` or later.
    ///
    /// # Errors
    /// As [`find`](Profile::find).
    pub fn find_since(
        folder: &Path,
        key: &ProfileKey,
        oldest: SystemTime,
    ) -> Result<Option<Profile>, ProfileError> {
        let kept_at = fs::metadata(Profile::path(folder, key)).and_then(|found| found.modified());
        if kept_at.is_ok_and(|at| at >= oldest) { Profile::find(folder, key) } else { Ok(None) }
    }

    /// Keeps what a run that was planned with this profile has learned. A profile that was measured anew meanwhile, or is gone,
    /// stays as it is. Its file is as old as before.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn learn(&self, folder: &Path, correction: &Correction) -> Result<(), ProfileError> {
        let Some(there) = Profile::find(folder, &self.key)?.filter(|there| there.is_of(self)) else {
            return Ok(());
        };
        let path = Profile::path(folder, &self.key);
        let failed = |source| ProfileError::Io { path: path.clone(), source };
        let kept_at = fs::metadata(&path).and_then(|found| found.modified()).map_err(failed)?;
        Profile { correction: *correction, ..there }.keep(folder)?;
        let file = fs::File::options().append(true).open(&path).map_err(failed)?;
        file.set_modified(kept_at).map_err(failed)
    }

    /// Whether both are one measurement: none takes as long as another to the nanosecond. What is read may differ in its last bit.
    fn is_of(&self, other: &Profile) -> bool {
        (self.seconds - other.seconds).abs() <= 1e-12 * other.seconds
    }

    /// Writes it where [`find`](Profile::find) looks; whole, or not at all.
    ///
    /// # Errors
    /// [`ProfileError::Io`].
    pub fn keep(&self, folder: &Path) -> Result<PathBuf, ProfileError> {
        let path = Profile::path(folder, &self.key);
        let write = || {
            fs::create_dir_all(folder)?;
            let mut new = NamedTempFile::new_in(folder)?;
            serde_json::to_writer_pretty(&mut new, self)?;
            new.write_all(b"\n")?;
            // A machine that loses power would have the new name and none of the bytes.
            new.as_file().sync_all()?;
            Ok(new.persist(&path).map(drop)?)
        };
        write().map_err(|source| ProfileError::Io { path: path.clone(), source })?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::cost::{Curve, Decode, Linear};
    use std::time::Duration;

    fn profile(threads: usize) -> Profile {
        let linear = Linear { seconds: Curve::rate(1.0), ..Linear::default() };
        let key = ProfileKey {
            version: 1,
            cpu: "a processor".into(),
            cores: 2,
            device: "cpu".into(),
            isa: "scalar".into(),
            threads,
            dtype: "bf16".into(),
            kv: "int4".into(),
            formats: vec![("Bf16".into(), 1000)],
            shape: [2, 64, 2, 1, 32, 128, 512],
            drive: None,
        };
        let tables = Tables {
            qkv: linear.clone(),
            out: linear.clone(),
            mlp: linear.clone(),
            head: linear,
            embed: Curve::rate(1.0),
            sample: Curve::rate(1.0),
            decode: vec![Decode { seqs: 1, seconds: Curve::rate(1.0) }],
            prefill: Curve::rate(1.0),
            disk_read: Curve::rate(1.0),
            disk_write_bytes_per_s: 1.0,
            copy_bytes_per_s: 1.0,
            ..Tables::default()
        };
        Profile { key, tables, seconds: 1.0, correction: Correction::default() }
    }

    #[test]
    fn a_profile_is_found_by_what_it_is_of() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (profile(1), profile(2));
        assert!(Profile::find(folder.path(), &one.key).unwrap().is_none());
        one.keep(folder.path()).unwrap();
        assert_eq!(Profile::find(folder.path(), &one.key).unwrap(), Some(one.clone()));
        assert_eq!(Profile::find(folder.path(), &two.key).unwrap(), None);
        two.keep(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_profile_of_a_drive_is_of_that_drive_alone() {
        let folder = tempfile::tempdir().unwrap();
        let on = |drive| Profile { key: ProfileKey { drive, ..profile(1).key }, ..profile(1) };
        on(Some(7)).keep(folder.path()).unwrap();
        let found = |drive| Profile::find(folder.path(), &on(drive).key).unwrap();
        assert_eq!((found(Some(7)), found(Some(8)), found(None)), (Some(on(Some(7))), None, None));
        let here = key::drive_of(folder.path());
        assert!(here.is_some());
        assert_eq!(here, key::drive_of(&folder.path().join("not/made/yet")));
        assert!(key::drive_of(Path::new("not-made-yet")).is_some());
    }

    #[test]
    fn a_profile_that_is_too_old_is_not_found() {
        let folder = tempfile::tempdir().unwrap();
        let one = profile(1);
        let file = fs::File::options().append(true).open(one.keep(folder.path()).unwrap()).unwrap();
        let hour = |hour: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * hour);
        file.set_modified(hour(100)).unwrap();
        let since = |oldest| Profile::find_since(folder.path(), &one.key, oldest).unwrap().is_some();
        assert!(since(hour(99)) && since(hour(100)) && !since(hour(101)));
    }

    #[test]
    fn what_a_run_learned_is_kept_until_something_is_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let one = profile(1);
        let file = fs::File::options().append(true).open(one.keep(folder.path()).unwrap()).unwrap();
        let hour = SystemTime::UNIX_EPOCH + Duration::from_secs(3600);
        file.set_modified(hour).unwrap();
        let mut learned = Correction::default();
        learned.hear(policy::cost::OpSort::Reads, 100.0, 200.0, &policy::cost::Pace::default());
        let found = || Profile::find(folder.path(), &one.key).unwrap().expect("a profile");
        one.learn(folder.path(), &learned).unwrap();
        assert_eq!(found(), Profile { correction: learned, ..one.clone() });
        assert!(
            Profile::find_since(folder.path(), &one.key, hour + Duration::from_secs(1)).unwrap().is_none()
        );
        // Another one, which the run knows nothing of.
        let again = Profile { seconds: 1.000_001, ..one.clone() };
        again.keep(folder.path()).unwrap();
        one.learn(folder.path(), &learned).unwrap();
        assert_eq!(found(), again);
        fs::remove_file(Profile::path(folder.path(), &one.key)).unwrap();
        one.learn(folder.path(), &learned).unwrap();
        assert!(Profile::find(folder.path(), &one.key).unwrap().is_none());
    }

    #[test]
    fn a_profile_with_holes_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let whole = profile(1);
        let path = whole.keep(folder.path()).unwrap();
        let torn = fs::read_to_string(&path).unwrap();
        fs::write(&path, &torn[..torn.len() / 2]).unwrap();
        let found = Profile::find(folder.path(), &whole.key).unwrap_err().to_string();
        assert!(found.contains("run `ballast profile` again"), "{found}");
        let empty = Profile { tables: Tables::default(), ..whole };
        empty.keep(folder.path()).unwrap();
        let found = Profile::find(folder.path(), &empty.key).unwrap_err().to_string();
        assert!(found.contains("the table qkv is empty"), "{found}");
    }
}

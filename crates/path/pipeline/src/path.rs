//! Which data path a worker takes: one for each kind of machine, and a reference.

use std::ffi::OsString;
use std::sync::OnceLock;

use strata_classify::Kernel;
use strata_wire::wide::Simd;

/// Names a path, for tests: all paths that a machine can run write the same log, byte for byte.
const VARIABLE: &str = "STRATA_PATH";

/// How packets get from a batch into records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPath {
    /// Packet by packet, without vector instructions of our own: what the others are checked
    /// against.
    Reference,
    /// x86-64 with AVX2: batches in columns, 16 packets in two registers; the forest takes 64.
    Avx2,
    /// x86-64 with AVX-512: batches in columns, 16 packets at a time; the forest takes 64.
    Avx512,
    /// Arm with NEON: batches in columns, 16 packets in four registers; the forest takes 64.
    Neon,
}

/// Why a path cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// No path has this name.
    #[error("{VARIABLE} is {0:?}: set it to reference, avx2, avx512 or neon, or unset it")]
    Unknown(OsString),
    /// The machine does not support it.
    #[error("{VARIABLE} is {0:?}, which this machine cannot run: it has {1}")]
    Unavailable(&'static str, String),
}

impl DataPath {
    const ALL: [Self; 4] = [Self::Reference, Self::Avx2, Self::Avx512, Self::Neon];

    /// The paths that this machine supports, best last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let kernels = Kernel::available();
        let runs = |path: &Self| {
            let has_lanes = *path == Self::Reference || path.simd().is_some();
            kernels.contains(&path.kernel()) && has_lanes
        };
        Self::ALL.into_iter().filter(runs).collect()
    }

    /// The best path on this machine.
    #[must_use]
    pub fn best() -> Self {
        Self::available().pop().unwrap_or(Self::Reference)
    }

    /// The path that the environment names (`STRATA_PATH`), else the best one. The environment is
    /// read once.
    ///
    /// # Errors
    ///
    /// If it names no path, or one that this machine does not support.
    pub fn chosen() -> Result<Self, PathError> {
        static CHOSEN: OnceLock<Result<DataPath, PathError>> = OnceLock::new();
        let choose = || match std::env::var_os(VARIABLE) {
            None => Ok(Self::best()),
            Some(name) => Self::by_name(name),
        };
        CHOSEN.get_or_init(choose).clone()
    }

    fn by_name(name: OsString) -> Result<Self, PathError> {
        let Some(path) = Self::ALL.into_iter().find(|path| path.name() == name) else {
            return Err(PathError::Unknown(name));
        };
        let available = Self::available();
        if available.contains(&path) {
            return Ok(path);
        }
        let names: Vec<&str> = available.into_iter().map(Self::name).collect();
        Err(PathError::Unavailable(path.name(), names.join(", ")))
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }

    /// The instructions for batches in columns, if they are used.
    pub(crate) fn simd(self) -> Option<Simd> {
        match self {
            Self::Avx512 => Simd::avx512(),
            Self::Avx2 => Simd::avx2(),
            Self::Neon => Simd::neon(),
            Self::Reference => None,
        }
    }

    /// What evaluates the forest.
    pub(crate) fn kernel(self) -> Kernel {
        match self {
            Self::Reference => Kernel::Portable,
            Self::Avx2 => Kernel::Avx2,
            Self::Avx512 => Kernel::Avx512,
            Self::Neon => Kernel::Neon,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_by_its_name_and_refused_with_reasons() {
        assert_eq!(
            DataPath::by_name("reference".into()),
            Ok(DataPath::Reference)
        );
        let unknown = DataPath::by_name("AVX512".into()).unwrap_err().to_string();
        assert_eq!(
            unknown,
            "STRATA_PATH is \"AVX512\": set it to reference, avx2, avx512 or neon, or unset it"
        );
        // No machine has both.
        let foreign = if cfg!(target_arch = "aarch64") {
            "avx2"
        } else {
            "neon"
        };
        let refused = DataPath::by_name(foreign.into()).unwrap_err().to_string();
        assert!(
            refused.contains("cannot run: it has reference"),
            "{refused}"
        );
        for path in DataPath::available() {
            assert_eq!(DataPath::by_name(path.name().into()), Ok(path));
        }
    }
}

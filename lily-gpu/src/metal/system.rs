//! Which GPU and which macOS this is, and what follows: the kernel family, and what memory may be used.

use objc2::msg_send;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{AnyObject, ProtocolObject};
use objc2_foundation::{NSProcessInfo, NSString};
use objc2_metal::{MTLCreateSystemDefaultDevice, MTLDevice, MTLGPUFamily};

use crate::error::GpuError;

// Without this framework a command-line program is given no default device.
#[cfg(target_os = "macos")]
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

/// Set to `1`, it lets Lily use a GPU that does not report what Lily needs, such as the virtual GPU of hosted CI machines.
pub const ANY_GPU: &str = "LILY_ANY_GPU";

/// How the kernels multiply matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFamily {
    /// `simdgroup_matrix`: M1 to M4.
    Simdgroup,
    /// The tensor operations of Metal 4: M5 and later.
    Tensor,
}

impl KernelFamily {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Simdgroup => "simdgroup_matrix",
            Self::Tensor => "Metal 4 tensor operations",
        }
    }
}

/// A macOS version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OsVersion {
    /// 15 of 15.5.
    pub major: isize,
    /// 5 of 15.5.
    pub minor: isize,
}

impl std::fmt::Display for OsVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "macOS {}.{}", self.major, self.minor)
    }
}

/// The oldest macOS that has the `bfloat` type.
const OLDEST: OsVersion = OsVersion { major: 14, minor: 0 };
/// Residency sets, math modes.
const SEQUOIA: OsVersion = OsVersion { major: 15, minor: 0 };
/// Tensor operations whose inputs are in registers.
const REGISTER_TENSORS: OsVersion = OsVersion { major: 26, minor: 2 };

/// The system's GPU.
pub struct System {
    device: Retained<ProtocolObject<dyn MTLDevice>>,
    /// The macOS version.
    pub os: OsVersion,
    /// The device's name: `Apple M4 Max`.
    pub name: String,
    /// The GPU's name among Apple's: `applegpu_g16s`; virtual devices have none.
    pub architecture: Option<String>,
    /// The highest Apple GPU family that the device reports (7 for M1), or 0.
    pub apple_family: usize,
}

impl System {
    /// The system's default GPU.
    ///
    /// # Errors
    /// There is none, macOS is too old, or the GPU lacks what the kernels need; the message says what to do.
    pub fn detect() -> Result<Self, GpuError> {
        autoreleasepool(|_| {
            let version = NSProcessInfo::processInfo().operatingSystemVersion();
            let os = OsVersion {
                major: version.majorVersion,
                minor: version.minorVersion,
            };
            if os < OLDEST {
                return Err(GpuError::Device(format!(
                    "Lily's Metal kernels need {OLDEST} or later; this is {os}"
                )));
            }
            let device = MTLCreateSystemDefaultDevice().ok_or_else(|| {
                GpuError::Device("Metal has no GPU here (a session without one, or a sandbox)".into())
            })?;
            let families = [10, 9, 8, 7, 6, 5];
            let supports = |family: &&usize| device.supportsFamily(MTLGPUFamily(1000 + **family as isize));
            let apple_family = families.iter().find(supports).copied().unwrap_or(0);
            let name = device.name().to_string();
            let forced = std::env::var_os(ANY_GPU).is_some_and(|value| value == "1");
            if apple_family < 7 && !forced {
                return Err(GpuError::Device(format!(
                    "{name} is no Apple silicon GPU that Lily knows (Apple7, an M1, or later is needed; this reports Apple{apple_family}); \
                     {ANY_GPU}=1 tries it all the same"
                )));
            }
            let architecture = architecture(&device);
            Ok(Self {
                device,
                os,
                name,
                architecture,
                apple_family,
            })
        })
    }

    /// Metal's device.
    pub fn device(&self) -> &ProtocolObject<dyn MTLDevice> {
        &self.device
    }

    /// Whether the system has residency sets.
    pub fn has_residency_sets(&self) -> bool {
        self.os >= SEQUOIA
    }

    /// Whether compile options have a math mode; before, there is only fast math or not.
    pub fn has_math_modes(&self) -> bool {
        self.os >= SEQUOIA
    }

    /// Whether GPU and system both have the tensor operations that the kernels use.
    pub fn has_tensor_operations(&self) -> bool {
        self.apple_family >= 10 && self.os >= REGISTER_TENSORS
    }

    /// Bytes that the GPU may use without slowing the system down.
    pub fn working_set(&self) -> usize {
        usize::try_from(self.device.recommendedMaxWorkingSetSize()).unwrap_or(usize::MAX)
    }

    /// Bytes of the largest buffer; less than [`Self::working_set`].
    pub fn max_buffer_length(&self) -> usize {
        self.device.maxBufferLength()
    }

    /// For people: name, memory and system.
    pub fn describe(&self) -> String {
        let gib = self.working_set() as f64 / f64::from(1 << 30);
        format!("{}, {gib:.1} GiB for the GPU, {}", self.name, self.os)
    }

    /// Why `needed` bytes are too many, and how to raise the limit.
    pub fn too_large(&self, needed: usize) -> String {
        let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
        // What the weights and the state take, and a little for the system's own use of the GPU.
        let megabytes = (needed + (1 << 30)).div_ceil(1 << 20);
        format!(
            "{:.1} GiB are needed, but macOS lets the GPU use {:.1} GiB. If this Mac has the memory, raise the limit until the next start with\n    \
             sudo sysctl iogpu.wired_limit_mb={megabytes}",
            gib(needed),
            gib(self.working_set())
        )
    }
}

/// `device.architecture.name`. Virtual devices return nil, which objc2-metal's own method does not expect.
fn architecture(device: &ProtocolObject<dyn MTLDevice>) -> Option<String> {
    // SAFETY: a property of every MTLDevice since macOS 14, the oldest that `detect` accepts.
    let architecture: Option<Retained<AnyObject>> = unsafe { msg_send![device, architecture] };
    // SAFETY: `name` of MTLArchitecture is a string.
    let name: Option<Retained<NSString>> = unsafe { msg_send![&*architecture?, name] };
    name.map(|name| name.to_string())
}

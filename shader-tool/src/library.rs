//! Libraries of kernels and the pipelines made from them.

use crate::emulator::object::KernelObject;
use crate::manifest::{KernelInfo, Manifest, ScalarType};
use crate::source::emit::{Module, Target};
use crate::source::flatten::flatten;
use crate::source::parse::Unit;
use crate::toolchain::Cache;
use crate::{ShaderError, SourceFile, lint};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// How kernels are compiled for the emulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Optimized, on all CPU cores, unchecked.
    #[default]
    Plain,
    /// Every memory access is checked; on one core; some 20 to 50 times slower.
    Checked,
}

/// Which implementation of the tile vocabulary (`include/tile.h`) kernels are compiled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TileBackend {
    /// What suits the target: plain loops in the emulator, `mma.sync` in PTX.
    #[default]
    Native,
    /// `simdgroup_matrix`, as on M1 to M4.
    Simdgroup,
    /// Metal 4 tensor operations, as on M5.
    Tensor,
}

/// Options of [`Library::build`].
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Plain or checked.
    pub mode: Mode,
    /// For the emulator only.
    pub tiles: TileBackend,
    /// Where compiled kernels are kept. By default `LILY_SHADER_CACHE`, else `shader-cache` in cargo's target directory,
    /// else the system's temporary directory.
    pub cache_dir: Option<PathBuf>,
    /// Preprocessor macros, name and value.
    pub defines: Vec<(String, String)>,
}

/// A function constant's value.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    Bool(bool),
    Short(i16),
    Ushort(u16),
    Int(i32),
    Uint(u32),
    Float(f32),
}

impl Value {
    fn ty(self) -> ScalarType {
        match self {
            Self::Bool(_) => ScalarType::Bool,
            Self::Short(_) => ScalarType::Short,
            Self::Ushort(_) => ScalarType::Ushort,
            Self::Int(_) => ScalarType::Int,
            Self::Uint(_) => ScalarType::Uint,
            Self::Float(_) => ScalarType::Float,
        }
    }

    /// Its bytes, from the low end of a word.
    fn bits(self) -> u32 {
        match self {
            Self::Bool(v) => u32::from(v),
            Self::Short(v) => u32::from(v.cast_unsigned()),
            Self::Ushort(v) => u32::from(v),
            Self::Int(v) => v.cast_unsigned(),
            Self::Uint(v) => v,
            Self::Float(v) => v.to_bits(),
        }
    }
}

/// Values for a pipeline's function constants, by index.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Constants(BTreeMap<u32, Value>);

impl Constants {
    /// None set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets one; the type must be the declared one.
    #[must_use]
    pub fn set(mut self, index: u32, value: Value) -> Self {
        self.0.insert(index, value);
        self
    }

    /// Sets a `bool`.
    #[must_use]
    pub fn bool(self, index: u32, value: bool) -> Self {
        self.set(index, Value::Bool(value))
    }

    /// Sets a `uint`.
    #[must_use]
    pub fn uint(self, index: u32, value: u32) -> Self {
        self.set(index, Value::Uint(value))
    }

    /// Sets an `int`.
    #[must_use]
    pub fn int(self, index: u32, value: i32) -> Self {
        self.set(index, Value::Int(value))
    }

    /// Sets a `float`.
    #[must_use]
    pub fn float(self, index: u32, value: f32) -> Self {
        self.set(index, Value::Float(value))
    }

    fn check(&self, kernel: &KernelInfo) -> Result<(), ShaderError> {
        let error = |index, message: String| {
            Err(ShaderError::Constant {
                kernel: kernel.name.clone(),
                index,
                message,
            })
        };
        for constant in &kernel.constants {
            match self.0.get(&constant.index) {
                None if constant.checked_for_definition => {}
                None => return error(constant.index, format!("{} has no value", constant.name)),
                Some(value) if value.ty() != constant.ty => {
                    return error(
                        constant.index,
                        format!(
                            "{} is {:?}, but the value is {:?}",
                            constant.name,
                            constant.ty,
                            value.ty()
                        ),
                    );
                }
                Some(_) => {}
            }
        }
        match self
            .0
            .keys()
            .find(|&&index| kernel.constants.iter().all(|c| c.index != index))
        {
            Some(&index) => error(index, "the kernel uses no such constant".to_owned()),
            None => Ok(()),
        }
    }

    /// One word an index, and a bit for each that has a value.
    pub(crate) fn words(&self) -> ([u32; 64], u64) {
        let (mut words, mut defined) = ([0; 64], 0);
        for (&index, value) in &self.0 {
            if let Some(word) = words.get_mut(index as usize) {
                *word = value.bits();
                defined |= 1 << index;
            }
        }
        (words, defined)
    }
}

/// The GPU generation that PTX is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PtxArch {
    /// Compute capability 8.0: A100 and newer.
    Sm80,
    /// Compute capability 9.0: H100, H200 and newer.
    Sm90,
    /// Compute capability 9.0 alone, with what only it has: products of warpgroups.
    Sm90a,
}

impl PtxArch {
    /// Oldest first.
    pub const ALL: [PtxArch; 3] = [PtxArch::Sm80, PtxArch::Sm90, PtxArch::Sm90a];

    /// As NVIDIA writes it.
    pub fn name(self) -> &'static str {
        match self {
            PtxArch::Sm80 => "sm_80",
            PtxArch::Sm90 => "sm_90",
            PtxArch::Sm90a => "sm_90a",
        }
    }

    /// Its kernels may be started before those that they depend on are done, and wait themselves.
    pub fn starts_early(self) -> bool {
        self != PtxArch::Sm80
    }
}

/// Kernels that were read and linted; compiled when a pipeline asks for them.
#[derive(Debug)]
pub struct Library {
    sources: Vec<SourceFile>,
    modules: Vec<Module>,
    manifest: Manifest,
    options: Options,
    cache: Cache,
    /// Loaded objects by source name.
    objects: Mutex<HashMap<String, Arc<KernelObject>>>,
}

impl Library {
    /// Reads and lints every `.metal` source (headers enter by `#include "..."`). Needs no clang.
    ///
    /// # Errors
    /// [`ShaderError::Source`] with everything that was found.
    pub fn build(sources: &[SourceFile], options: Options) -> Result<Self, ShaderError> {
        let (mut modules, mut errors) = (Vec::new(), Vec::new());
        for source in sources.iter().filter(|s| s.is_unit()) {
            let module = flatten(sources, source).and_then(Unit::parse).and_then(|unit| {
                let found = lint::check(&unit);
                if found.is_empty() {
                    Module::new(unit)
                } else {
                    Err(found)
                }
            });
            match module {
                Ok(module) => modules.push(module),
                Err(found) => errors.extend(found),
            }
        }
        let kernels: Vec<KernelInfo> = modules.iter().flat_map(|m| m.kernels.iter().cloned()).collect();
        let mut seen: HashMap<&str, &KernelInfo> = HashMap::new();
        for kernel in &kernels {
            if let Some(first) = seen.insert(&kernel.name, kernel) {
                errors.push(crate::Diagnostic {
                    file: kernel.file.clone(),
                    line: kernel.line,
                    message: format!("kernel name {} is taken by {}:{}", kernel.name, first.file, first.line),
                });
            }
        }
        if !errors.is_empty() {
            errors.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
            errors.dedup(); // A header's findings come once for every unit that includes it.
            return Err(ShaderError::Source(errors));
        }
        let cache = Cache::new(options.cache_dir.as_deref());
        let objects = Mutex::default();
        Ok(Self {
            sources: sources.to_vec(),
            modules,
            manifest: Manifest { kernels },
            options,
            cache,
            objects,
        })
    }

    /// What the sources declare.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// One kernel's declaration.
    ///
    /// # Errors
    /// [`ShaderError::UnknownKernel`].
    pub fn kernel(&self, name: &str) -> Result<&KernelInfo, ShaderError> {
        let found = self.manifest.kernels.iter().find(|k| k.name == name);
        found.ok_or_else(|| ShaderError::UnknownKernel(name.to_owned()))
    }

    /// The names of the `.metal` sources, each compiled on its own.
    pub fn units(&self) -> impl Iterator<Item = &str> {
        self.modules.iter().map(|module| module.unit.flat.unit_name())
    }

    /// The generations that one source can be PTX for: what multiplies by warpgroups is for one alone.
    ///
    /// # Errors
    /// [`ShaderError::UnknownKernel`] if there is no such source.
    pub fn ptx_archs(&self, file: &str) -> Result<&'static [PtxArch], ShaderError> {
        let by_warpgroups = self.module(file)?.cpp(Target::Nvptx).contains("::msl::warpgroup_begin");
        Ok(if by_warpgroups {
            &[PtxArch::Sm90a]
        } else {
            &[PtxArch::Sm80, PtxArch::Sm90]
        })
    }

    /// Compiles one source for the emulator now, rather than at the first pipeline that needs it.
    ///
    /// # Errors
    /// [`ShaderError::UnknownKernel`] if there is no such source, [`ShaderError::NoClang`], [`ShaderError::Compile`].
    pub fn compile(&self, file: &str) -> Result<(), ShaderError> {
        self.object(file).map(drop)
    }

    /// One `.metal` source with its own headers in place and `#line` directives: what Apple's run-time compiler takes.
    ///
    /// # Errors
    /// [`ShaderError::UnknownKernel`] if there is no such source.
    pub fn flatten(&self, file: &str) -> Result<String, ShaderError> {
        let unit = self.sources.iter().find(|s| s.name == file && s.is_unit());
        let unit = unit.ok_or_else(|| ShaderError::UnknownKernel(file.to_owned()))?;
        let flat = flatten(&self.sources, unit).map_err(ShaderError::Source)?;
        Ok(flat.with_line_markers(&flat.text))
    }

    /// The C++ that a `.metal` source becomes, for the emulator: to look at.
    ///
    /// # Errors
    /// [`ShaderError::UnknownKernel`] if there is no such source.
    pub fn cpp(&self, file: &str) -> Result<String, ShaderError> {
        Ok(self.module(file)?.cpp(Target::Host))
    }

    fn module(&self, file: &str) -> Result<&Module, ShaderError> {
        let is_it = |m: &&Module| m.unit.flat.unit_name() == file;
        self.modules
            .iter()
            .find(is_it)
            .ok_or_else(|| ShaderError::UnknownKernel(file.to_owned()))
    }

    /// A kernel ready to be dispatched. Compiles its source on first use; function constants are bound at dispatch, so
    /// pipelines with other constants share the compiled object.
    ///
    /// # Errors
    /// [`ShaderError::UnknownKernel`], [`ShaderError::Constant`], [`ShaderError::NoClang`], [`ShaderError::Compile`].
    pub fn pipeline(&self, name: &str, constants: &Constants) -> Result<Pipeline, ShaderError> {
        let info = self.kernel(name)?;
        constants.check(info)?;
        let object = self.object(&info.unit)?;
        let entry = object.entry(name)?;
        Ok(Pipeline {
            info: Arc::new(info.clone()),
            constants: constants.clone(),
            object,
            entry,
        })
    }

    /// Compiles every source for the emulator now, on all cores, rather than at the first pipeline that needs it.
    ///
    /// # Errors
    /// The first of [`ShaderError::NoClang`] and [`ShaderError::Compile`].
    pub fn compile_all(&self) -> Result<(), ShaderError> {
        let next = std::sync::atomic::AtomicUsize::new(0);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            let compile = || {
                while let Some(module) = self
                    .modules
                    .get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
                {
                    self.object(module.unit.flat.unit_name())?;
                }
                Ok(())
            };
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(compile)).collect();
            workers
                .into_iter()
                .try_for_each(|w| w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    fn object(&self, file: &str) -> Result<Arc<KernelObject>, ShaderError> {
        let lock = || self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(object) = lock().get(file) {
            return Ok(object.clone());
        }
        // Compiled outside the lock: two threads that want the same object at once do the work twice, which is harmless.
        let module = self.module(file)?;
        let mut text = module.cpp(Target::Host);
        if self.options.mode == Mode::Checked {
            text.push_str("#include <msl/check.h>\n");
        }
        let mut arguments = common_arguments(&self.options.defines);
        arguments.extend(strings(&["-fPIC", "-shared", "-fno-stack-protector", "-lm"]));
        // Fiber switches push below the stack pointer.
        if cfg!(target_arch = "x86_64") {
            arguments.extend(strings(&["-mno-red-zone", cpu_flag()]));
        }
        match self.options.tiles {
            TileBackend::Native => {}
            TileBackend::Simdgroup => arguments.push("-DTILE_BACKEND=1".to_owned()),
            TileBackend::Tensor => arguments.push("-DTILE_BACKEND=2".to_owned()),
        }
        arguments.extend(match self.options.mode {
            Mode::Plain => strings(&[
                "-O2",
                "-g1",
                "-ffp-contract=on",
                "-fno-math-errno",
                "-fno-semantic-interposition",
            ]),
            // -O1, not -O2: accesses stay apart, so each is seen with its own size and line. Vectors of more than 16 bytes
            // would go unseen, so nothing may widen accesses.
            Mode::Checked => strings(&[
                "-O1",
                "-g1",
                "-DMSL_CHECKED",
                "-fsanitize=thread",
                "-mllvm",
                "-tsan-instrument-func-entry-exit=0",
                "-mllvm",
                "-tsan-instrument-read-before-write=1",
                "-fno-vectorize",
                "-fno-slp-vectorize",
                // The instrumentation calls hooks in the object itself, not the sanitizer's runtime.
                "-nostartfiles",
                "-fno-sanitize-link-runtime",
            ]),
        });
        let path = self
            .cache
            .compile(file, &text, &arguments, std::env::consts::DLL_EXTENSION)?;
        let object = Arc::new(KernelObject::load(path, self.options.mode)?);
        lock().insert(file.to_owned(), object.clone());
        Ok(object)
    }

    /// PTX of one `.metal` source, with all its kernels. Function constants are names in it: see [`crate::Ptx`].
    ///
    /// # Errors
    /// [`ShaderError::UnknownKernel`] if there is no such source, [`ShaderError::NoClang`], [`ShaderError::Compile`].
    pub fn ptx(&self, file: &str, arch: PtxArch) -> Result<String, ShaderError> {
        let module = self.module(file)?;
        let text = module.cpp(Target::Nvptx);
        let path = self.cache.compile(file, &text, &self.ptx_arguments(arch), "ptx")?;
        let mut text = std::fs::read_to_string(&path).map_err(|source| ShaderError::Io { path, source })?;
        if arch.starts_early() {
            // Such a load may be moved before the wait for the kernels that write what it reads.
            text = text.replace("ld.global.nc.", "ld.global.");
        }
        Ok(module.kernels.iter().fold(text, with_thread_limit))
    }

    /// Stands for everything that [`Library::ptx`] compiles, but for the compiler: what has the same key needs no compiling. Needs
    /// no clang.
    ///
    /// # Errors
    /// [`ShaderError::UnknownKernel`] if there is no such source.
    pub fn ptx_key(&self, file: &str, arch: PtxArch) -> Result<String, ShaderError> {
        let text = self.module(file)?.cpp(Target::Nvptx);
        Ok(crate::toolchain::key(&text, &self.ptx_arguments(arch)))
    }

    fn ptx_arguments(&self, arch: PtxArch) -> Vec<String> {
        let (cpu, isa, sm) = match arch {
            PtxArch::Sm80 => ("-march=sm_80", "+ptx78", 80),
            PtxArch::Sm90 => ("-march=sm_90", "+ptx83", 90),
            PtxArch::Sm90a => ("-march=sm_90a", "+ptx83", 90),
        };
        let mut arguments = common_arguments(&self.options.defines);
        arguments.extend(strings(&[
            "-target",
            "nvptx64-nvidia-cuda",
            cpu,
            "-Xclang",
            "-target-feature",
            "-Xclang",
            isa,
        ]));
        // `device` and `constant` are one hardware space there: without mangling, overloads on them would collide.
        arguments.extend(strings(&[
            "-Xclang",
            "-faddress-space-map-mangling=no",
            "-nogpulib",
            "-S",
        ]));
        // Everything is inlined: a function that is called would look for parameters that are passed by value in the wrong place.
        arguments.extend(strings(&[
            "-O3",
            "-ffp-contract=fast",
            "-fno-math-errno",
            "-mllvm",
            "-inline-threshold=1000000",
        ]));
        arguments.push(format!("-DMSL_SM={sm}"));
        arguments
    }
}

/// clang knows a launch bound for CUDA sources only, so it is added to the PTX: it decides how many registers ptxas may use.
fn with_thread_limit(text: String, kernel: &KernelInfo) -> String {
    let Some(limit) = kernel.max_threads.as_ref().and_then(|n| n.parse::<u32>().ok()) else {
        return text;
    };
    let Some(entry) = text.find(&format!(".entry {}(", kernel.name)) else {
        return text;
    };
    let Some(body) = text[entry..].find("\n{") else {
        return text;
    };
    let (before, after) = text.split_at(entry + body);
    format!("{before}\n.maxntid {limit}, 1, 1{after}")
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn common_arguments(defines: &[(String, String)]) -> Vec<String> {
    let mut arguments = strings(&[
        "-std=c++20",
        "-Wall",
        "-Wno-unused-function",
        "-Wno-unused-variable",
        "-Wno-unknown-pragmas",
        "-Wno-duplicate-decl-specifier",
        "-Wno-ignored-attributes",
        "-Wno-pass-failed",
        // What clang would only warn about, or silently extend C++ with, and Metal does not have or computes differently.
        "-Werror=vla",
        "-Werror=vla-cxx-extension",
        "-Werror=double-promotion",
        "-Werror=return-type",
        "-Werror=uninitialized",
        "-Werror=sometimes-uninitialized",
        // In MSL 1.1 is a float, and half and bfloat arithmetic rounds at every step.
        "-Xclang",
        "-cl-single-precision-constant",
        "-Xclang",
        "-ffloat16-excess-precision=none",
        "-Xclang",
        "-fbfloat16-excess-precision=none",
        "-fno-exceptions",
        "-fno-rtti",
        "-fno-strict-aliasing",
        "-fvisibility=hidden",
        "-ferror-limit=30",
        // Paths in the debug information, and so the object's bytes, do not depend on the machine.
        "-fdebug-compilation-dir=/metal",
    ]);
    arguments.extend(defines.iter().map(|(name, value)| format!("-D{name}={value}")));
    arguments
}

/// One instruction set for most machines rather than each machine's own, so that results agree between them.
fn cpu_flag() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
        return "-march=x86-64-v3";
    }
    "-march=x86-64"
}

/// A kernel with its function constants bound. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pipeline {
    pub(crate) info: Arc<KernelInfo>,
    pub(crate) constants: Constants,
    pub(crate) object: Arc<KernelObject>,
    pub(crate) entry: crate::emulator::abi::Entry,
}

impl Pipeline {
    /// The kernel's declaration.
    pub fn kernel(&self) -> &KernelInfo {
        &self.info
    }
}

//! `MTLCompileOptions`, `MTLLibrary`, `MTLFunction` and `MTLFunctionConstantValues`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use objc2::rc::{Allocated, Retained};
use objc2::runtime::{AnyObject, NSObject, NSObjectProtocol};
use objc2::{AnyThread, DefinedClass, define_class, msg_send};
use objc2_foundation::NSString;
use objc2_metal::{MTLDataType, MTLLanguageVersion, MTLMathFloatingPointFunctions, MTLMathMode};
use shader_tool::{Constants, Library, Options, SourceFile, Value};

use crate::foundation::SoftError;
use crate::machine::{Machine, TensorOperations, needs_macos};

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "MTLCompileOptions"]
    #[ivars = Cell<Option<MTLLanguageVersion>>]
    pub(crate) struct SoftCompileOptions;

    unsafe impl NSObjectProtocol for SoftCompileOptions {}

    impl SoftCompileOptions {
        #[unsafe(method_id(init))]
        fn init(this: Allocated<Self>) -> Retained<Self> {
            let this = this.set_ivars(Cell::default());
            // SAFETY: the super class's designated initializer.
            unsafe { msg_send![super(this), init] }
        }

        #[unsafe(method(setLanguageVersion:))]
        fn set_language_version(&self, version: MTLLanguageVersion) {
            self.ivars().set(Some(version));
        }

        #[unsafe(method(setFastMathEnabled:))]
        fn set_fast_math_enabled(&self, _enabled: bool) {}

        #[unsafe(method(setMathMode:))]
        fn set_math_mode(&self, _mode: MTLMathMode) {
            needs_macos(15, "MTLCompileOptions.mathMode");
        }

        #[unsafe(method(setMathFloatingPointFunctions:))]
        fn set_math_functions(&self, _functions: MTLMathFloatingPointFunctions) {
            needs_macos(15, "MTLCompileOptions.mathFloatingPointFunctions");
        }
    }
);

/// The newest Metal Shading Language that a macOS has, as (major, minor).
fn newest_language(macos: usize) -> (usize, usize) {
    match macos {
        ..14 => (3, 0),
        14 => (3, 1),
        15..26 => (3, 2),
        26 => (4, 0),
        27.. => (4, 1),
    }
}

pub(crate) struct LibraryFields {
    library: Arc<Library>,
    /// Tells libraries apart in binary archives.
    fingerprint: u64,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "SoftMTLLibrary"]
    #[ivars = LibraryFields]
    pub(crate) struct SoftLibrary;

    unsafe impl NSObjectProtocol for SoftLibrary {}

    impl SoftLibrary {
        #[unsafe(method_id(newFunctionWithName:constantValues:error:))]
        fn new_function(
            &self,
            name: &NSString,
            constants: &SoftConstantValues,
            error: *mut *mut AnyObject,
        ) -> Option<Retained<SoftFunction>> {
            let result = self.function(&name.to_string(), constants);
            // SAFETY: Metal's callers pass null or a variable for the error.
            unsafe { SoftError::value_or_error(result, error) }
        }
    }
);

impl SoftLibrary {
    fn function(&self, name: &str, constants: &SoftConstantValues) -> Result<Retained<SoftFunction>, String> {
        let fields = self.ivars();
        if !fields
            .library
            .manifest()
            .kernels
            .iter()
            .any(|kernel| kernel.name == name)
        {
            return Err(format!("the library has no function {name}"));
        }
        let this = SoftFunction::alloc().set_ivars(FunctionFields {
            library: fields.library.clone(),
            fingerprint: fields.fingerprint,
            name: name.into(),
            constants: constants.ivars().borrow().clone(),
        });
        // SAFETY: the super class's designated initializer.
        Ok(unsafe { msg_send![super(this), init] })
    }

    /// Compiles one source text.
    ///
    /// # Errors
    /// What the reader, the lint or the machine's language version refuses.
    pub fn compile(
        machine: Arc<Machine>,
        text: &str,
        options: Option<&SoftCompileOptions>,
    ) -> Result<Retained<Self>, String> {
        let newest = newest_language(machine.spec.os.0);
        if let Some(version) = options.and_then(|options| options.ivars().get()) {
            let asked = (version.0 >> 16, version.0 & 0xffff);
            if asked >= (4, 0) && machine.spec.tensor_operations == TensorOperations::DoNotCompile {
                return Err("MPPTensorOpsMatMul2d.h: no matching function for call".into());
            }
            if asked > newest {
                return Err(format!(
                    "Metal {}.{} is not supported; the newest is {}.{}",
                    asked.0, asked.1, newest.0, newest.1
                ));
            }
        }
        let sources = [SourceFile::new("library.metal", text)];
        let mut options = Options {
            mode: machine.spec.mode,
            ..Options::default()
        };
        if machine.spec.tensor_operations == TensorOperations::OtherLayout {
            options.defines.push(("MPP_MISCOMPUTES".into(), "1".into()));
        }
        let library = Library::build(&sources, options).map_err(|error| error.to_string())?;
        let fields = LibraryFields {
            library: Arc::new(library),
            fingerprint: fingerprint(text.as_bytes()),
        };
        let this = Self::alloc().set_ivars(fields);
        // SAFETY: the super class's designated initializer.
        Ok(unsafe { msg_send![super(this), init] })
    }
}

/// FNV-1a: it has to be the same in every process, since archives are files.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// A function constant's type and bytes.
type ConstantValue = (MTLDataType, Vec<u8>);

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "MTLFunctionConstantValues"]
    #[ivars = RefCell<BTreeMap<usize, ConstantValue>>]
    pub(crate) struct SoftConstantValues;

    unsafe impl NSObjectProtocol for SoftConstantValues {}

    impl SoftConstantValues {
        #[unsafe(method_id(init))]
        fn init(this: Allocated<Self>) -> Retained<Self> {
            let this = this.set_ivars(RefCell::default());
            // SAFETY: the super class's designated initializer.
            unsafe { msg_send![super(this), init] }
        }

        #[unsafe(method(setConstantValue:type:atIndex:))]
        fn set_constant_value(&self, value: NonNull<c_void>, data_type: MTLDataType, index: usize) {
            let length = match data_type {
                MTLDataType::Bool => 1,
                MTLDataType::Short | MTLDataType::UShort => 2,
                MTLDataType::Int | MTLDataType::UInt | MTLDataType::Float => 4,
                other => panic!("a function constant of data type {} is not played", other.0),
            };
            // SAFETY: the caller passes a value of the type that it names.
            let bytes = unsafe { slice::from_raw_parts(value.as_ptr().cast::<u8>(), length) };
            self.ivars().borrow_mut().insert(index, (data_type, bytes.to_vec()));
        }
    }
);

pub(crate) struct FunctionFields {
    pub library: Arc<Library>,
    pub fingerprint: u64,
    pub name: String,
    constants: BTreeMap<usize, ConstantValue>,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "SoftMTLFunction"]
    #[ivars = FunctionFields]
    pub(crate) struct SoftFunction;

    unsafe impl NSObjectProtocol for SoftFunction {}
);

impl FunctionFields {
    /// The function constants, for the emulator's compiler.
    pub fn constants(&self) -> Constants {
        self.constants
            .iter()
            .fold(Constants::new(), |constants, (&index, (data_type, bytes))| {
                let index = index as u32;
                let word = |bytes: &[u8]| bytes.try_into().map(u32::from_ne_bytes).unwrap_or_default();
                match *data_type {
                    MTLDataType::Bool => constants.bool(index, bytes[0] != 0),
                    MTLDataType::Int => constants.int(index, word(bytes) as i32),
                    MTLDataType::UInt => constants.uint(index, word(bytes)),
                    MTLDataType::Float => constants.float(index, f32::from_bits(word(bytes))),
                    MTLDataType::Short => constants.set(index, Value::Short(i16::from_ne_bytes([bytes[0], bytes[1]]))),
                    _ => constants.set(index, Value::Ushort(u16::from_ne_bytes([bytes[0], bytes[1]]))),
                }
            })
    }

    /// Identifies the specialised function in a binary archive.
    pub fn key(&self) -> String {
        let constants: Vec<String> = self
            .constants
            .iter()
            .map(|(index, (data_type, bytes))| format!("{index}:{}:{bytes:?}", data_type.0))
            .collect();
        format!("{:016x} {} {}", self.fingerprint, self.name, constants.join(","))
    }
}

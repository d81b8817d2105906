//! The few Foundation classes that Metal's API passes around.

use std::ffi::{CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::slice;

use objc2::rc::{Allocated, Retained};
use objc2::runtime::{AnyObject, NSObject, NSObjectProtocol};
use objc2::{AnyThread, ClassType, DefinedClass, Message, define_class, msg_send};
use objc2_foundation::{NSOperatingSystemVersion, NSString};

use crate::machine;

define_class!(
    /// `NSString`, UTF-8 throughout.
    #[unsafe(super(NSObject))]
    #[name = "NSString"]
    #[ivars = CString]
    pub(crate) struct SoftString;

    unsafe impl NSObjectProtocol for SoftString {}

    impl SoftString {
        #[unsafe(method_id(initWithBytes:length:encoding:))]
        fn init_with_bytes(this: Allocated<Self>, bytes: *const c_void, length: usize, _encoding: i32) -> Retained<Self> {
            // SAFETY: `NSString::from_str` passes a `str`'s pointer and length.
            let bytes = unsafe { slice::from_raw_parts(bytes.cast::<u8>(), length) };
            let text = CString::new(bytes).expect("no text that Metal is given has a NUL");
            let this = this.set_ivars(text);
            // SAFETY: the super class's designated initializer.
            unsafe { msg_send![super(this), init] }
        }

        #[unsafe(method(UTF8String))]
        fn utf8(&self) -> *const c_char {
            self.ivars().as_ptr()
        }

        #[unsafe(method(lengthOfBytesUsingEncoding:))]
        fn length_of_bytes(&self, _encoding: i32) -> usize {
            self.ivars().count_bytes()
        }
    }
);

define_class!(
    /// `NSError`: a code and a description.
    #[unsafe(super(NSObject))]
    #[name = "NSError"]
    #[ivars = (isize, Retained<NSString>)]
    pub(crate) struct SoftError;

    unsafe impl NSObjectProtocol for SoftError {}

    impl SoftError {
        #[unsafe(method(code))]
        fn code(&self) -> isize {
            self.ivars().0
        }

        #[unsafe(method_id(localizedDescription))]
        fn localized_description(&self) -> Retained<NSString> {
            self.ivars().1.clone()
        }
    }
);

impl SoftError {
    pub fn new(code: isize, description: &str) -> Retained<Self> {
        let this = Self::alloc().set_ivars((code, NSString::from_str(description)));
        // SAFETY: the super class's designated initializer.
        unsafe { msg_send![super(this), init] }
    }

    /// The value, or `None` after handing an error to the caller of a method that has an `error:` argument.
    ///
    /// # Safety
    /// `out` is null or points to a variable that takes an autoreleased object.
    pub unsafe fn value_or_error<T>(result: Result<T, String>, out: *mut *mut AnyObject) -> Option<T> {
        let description = match result {
            Ok(value) => return Some(value),
            Err(description) => description,
        };
        if !out.is_null() {
            let error = Retained::autorelease_ptr(Self::new(1, &description));
            // SAFETY: the caller's promise.
            unsafe { out.write(error.cast()) };
        }
        None
    }
}

define_class!(
    /// `NSArray`.
    #[unsafe(super(NSObject))]
    #[name = "NSArray"]
    #[ivars = Vec<Retained<AnyObject>>]
    pub(crate) struct SoftArray;

    unsafe impl NSObjectProtocol for SoftArray {}

    impl SoftArray {
        #[unsafe(method_id(initWithObjects:count:))]
        fn init_with_objects(this: Allocated<Self>, objects: *const &AnyObject, count: usize) -> Retained<Self> {
            // SAFETY: `NSArray::from_slice` passes a slice's pointer and length.
            let objects = unsafe { slice::from_raw_parts(objects, count) };
            let this = this.set_ivars(objects.iter().map(|object| (*object).retain()).collect());
            // SAFETY: the super class's designated initializer.
            unsafe { msg_send![super(this), init] }
        }

        #[unsafe(method(count))]
        fn count(&self) -> usize {
            self.ivars().len()
        }

        #[unsafe(method_id(objectAtIndex:))]
        fn object_at(&self, index: usize) -> Retained<AnyObject> {
            self.ivars()[index].clone()
        }
    }
);

define_class!(
    /// `NSURL` of a file.
    #[unsafe(super(NSObject))]
    #[name = "NSURL"]
    #[ivars = PathBuf]
    pub(crate) struct SoftUrl;

    unsafe impl NSObjectProtocol for SoftUrl {}

    impl SoftUrl {
        #[unsafe(method_id(fileURLWithPath:))]
        fn file_url(path: &NSString) -> Retained<Self> {
            let this = Self::alloc().set_ivars(PathBuf::from(path.to_string()));
            // SAFETY: the super class's designated initializer.
            unsafe { msg_send![super(this), init] }
        }
    }
);

impl SoftUrl {
    pub fn path(&self) -> &Path {
        self.ivars()
    }
}

define_class!(
    /// `NSProcessInfo`: the version of the macOS that this thread's machine plays.
    #[unsafe(super(NSObject))]
    #[name = "NSProcessInfo"]
    pub(crate) struct SoftProcessInfo;

    unsafe impl NSObjectProtocol for SoftProcessInfo {}

    impl SoftProcessInfo {
        #[unsafe(method_id(processInfo))]
        fn process_info() -> Retained<Self> {
            // SAFETY: `new` takes no arguments and returns an object.
            unsafe { msg_send![Self::class(), new] }
        }

        #[unsafe(method(operatingSystemVersion))]
        fn operating_system_version(&self) -> NSOperatingSystemVersion {
            let (major, minor, patch) = machine::current().map_or((0, 0, 0), |machine| machine.spec.os);
            NSOperatingSystemVersion {
                majorVersion: major as isize,
                minorVersion: minor as isize,
                patchVersion: patch as isize,
            }
        }
    }
);

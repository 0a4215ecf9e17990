//! The few functions of cuBLASLt that are needed, of whichever version is found.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::CUstream;
use libloading::Library;

use crate::library::Refused;
use crate::product::{Layout, Numbers, Places, Product, Room};
use crate::{CudaError, library};

use super::algorithms::{Algorithm, Algorithms, Key, key};
use super::apart;

/// What the library is given. Products of fewer rows are computed by own kernels, straight from the panels. Of bf16 the library took
/// for 128 rows what own kernels did for 32 (81 us for 4,096 x 28,672 on an H200). Others must be unpacked for it each time: of those
/// weights 124 us (int8) and 134 (int4), where own kernels took 207 and 182 for 128 rows, and as much more for more.
pub(crate) const ROOM: Room = Room {
    from_rows: 192,
    from_rows_in_place: 33,
    weight_bytes: 128 << 20,
    result_bytes: 128 << 20,
    workspace_bytes: 32 << 20,
};

type Status = c_int;
type Handle = *mut c_void;
type Object = *mut c_void;

/// Numbers of `cublasLt.h`, `cublas_api.h` and `library_types.h`.
mod number {
    /// What a search says that finds nothing, where it does not tell of none.
    pub(super) const NOT_SUPPORTED: super::Status = 15;
    pub(super) const COMPUTE_32F: i32 = 68;
    pub(super) const R_32F: i32 = 0;
    pub(super) const R_16BF: i32 = 14;
    pub(super) const OP_N: i32 = 0;
    pub(super) const OP_T: i32 = 1;
    /// Attributes of a product.
    pub(super) const TRANSA: i32 = 3;
    pub(super) const TRANSB: i32 = 4;
    pub(super) const EPILOGUE: i32 = 7;
    pub(super) const BIAS_POINTER: i32 = 8;
    pub(super) const BIAS_DATA_TYPE: i32 = 26;
    pub(super) const EPILOGUE_BIAS: u32 = 4;
    /// Attributes of a search.
    pub(super) const MAX_WORKSPACE_BYTES: i32 = 1;
    pub(super) const REDUCTION_SCHEME_MASK: i32 = 3;
    pub(super) const MIN_ALIGNMENT_BYTES: [i32; 4] = [5, 6, 7, 8];
    /// Parts of a sum are added in a step of their own, in one order.
    pub(super) const REDUCTION_COMPUTE_TYPE: u32 = 2;
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Found {
    algorithm: Algorithm,
    workspace_bytes: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

type Set = unsafe extern "C" fn(Object, c_int, *const c_void, usize) -> Status;
type Destroy = unsafe extern "C" fn(Object) -> Status;

/// The library's functions; it stays open for as long as the process.
struct Functions {
    version: unsafe extern "C" fn() -> usize,
    message: unsafe extern "C" fn(Status) -> *const c_char,
    create: unsafe extern "C" fn(*mut Handle) -> Status,
    destroy: unsafe extern "C" fn(Handle) -> Status,
    create_product: unsafe extern "C" fn(*mut Object, c_int, c_int) -> Status,
    set_product: Set,
    destroy_product: Destroy,
    create_layout: unsafe extern "C" fn(*mut Object, c_int, u64, u64, i64) -> Status,
    destroy_layout: Destroy,
    create_search: unsafe extern "C" fn(*mut Object) -> Status,
    set_search: Set,
    destroy_search: Destroy,
    search: unsafe extern "C" fn(
        Handle,
        Object,
        Object,
        Object,
        Object,
        Object,
        Object,
        c_int,
        *mut Found,
        *mut c_int,
    ) -> Status,
    multiply: unsafe extern "C" fn(
        Handle,
        Object,
        *const f32,
        *const c_void,
        Object,
        *const c_void,
        Object,
        *const f32,
        *const c_void,
        Object,
        *mut c_void,
        Object,
        *const [u64; 8],
        *mut c_void,
        usize,
        CUstream,
    ) -> Status,
    _library: Library,
}

impl Functions {
    /// Those of the first library that `starts`, opened at the first call that finds one.
    fn get(
        driver_major: Option<u32>,
        starts: impl Fn(&Functions) -> Result<(), String>,
    ) -> Result<&'static Functions, Refused> {
        static FOUND: Mutex<Option<&'static Functions>> = Mutex::new(None);
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(functions) = *found {
            return Ok(functions);
        }
        let functions = library::open("cublasLt", None, driver_major, |library| {
            let functions = Functions::of(library).ok_or("it lacks functions")?;
            starts(&functions).map(|()| functions)
        })?;
        // It stays for as long as the process.
        Ok(found.insert(Box::leak(Box::new(functions))))
    }

    /// A handle, for the device whose context is current.
    fn start(&self) -> Result<Handle, String> {
        let mut handle = null_mut();
        // SAFETY: a place for the handle is given.
        self.result(unsafe { (self.create)(&mut handle) }).map(|()| handle)
    }

    /// Whether there are handles for the device whose context is current: there are none where the driver is too old.
    fn starts(&self) -> Result<(), String> {
        let handle = self.start()?;
        // SAFETY: it was just made, and nobody has it.
        self.result(unsafe { (self.destroy)(handle) })
    }

    fn of(library: Library) -> Option<Functions> {
        // SAFETY: the functions have these signatures in versions 12 and 13, and live as long as the library.
        unsafe {
            Some(Functions {
                version: *library.get(b"cublasLtGetVersion").ok()?,
                message: *library.get(b"cublasLtGetStatusString").ok()?,
                create: *library.get(b"cublasLtCreate").ok()?,
                destroy: *library.get(b"cublasLtDestroy").ok()?,
                create_product: *library.get(b"cublasLtMatmulDescCreate").ok()?,
                set_product: *library.get(b"cublasLtMatmulDescSetAttribute").ok()?,
                destroy_product: *library.get(b"cublasLtMatmulDescDestroy").ok()?,
                create_layout: *library.get(b"cublasLtMatrixLayoutCreate").ok()?,
                destroy_layout: *library.get(b"cublasLtMatrixLayoutDestroy").ok()?,
                create_search: *library.get(b"cublasLtMatmulPreferenceCreate").ok()?,
                set_search: *library.get(b"cublasLtMatmulPreferenceSetAttribute").ok()?,
                destroy_search: *library.get(b"cublasLtMatmulPreferenceDestroy").ok()?,
                search: *library.get(b"cublasLtMatmulAlgoGetHeuristic").ok()?,
                multiply: *library.get(b"cublasLtMatmul").ok()?,
                _library: library,
            })
        }
    }

    fn result(&self, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library gives a text of its own for every number.
        Err(unsafe { CStr::from_ptr((self.message)(status)) }.to_string_lossy().into_owned())
    }
}

/// Something of the library's that goes with this.
struct Owned {
    object: Object,
    destroy: Destroy,
}

impl Owned {
    fn new(
        functions: &Functions,
        destroy: Destroy,
        create: impl FnOnce(&mut Object) -> Status,
    ) -> Result<Owned, String> {
        let mut object = null_mut();
        functions.result(create(&mut object))?;
        Ok(Owned { object, destroy })
    }

    fn set<T>(&self, functions: &Functions, set: Set, attribute: i32, value: T) -> Result<(), String> {
        // SAFETY: the object lives; the value is a number of as many bytes as the attribute has.
        functions.result(unsafe { set(self.object, attribute, from_ref(&value).cast(), size_of::<T>()) })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: made by the function that goes with this, and not used any more. What is not destroyed costs memory.
        unsafe { (self.destroy)(self.object) };
    }
}

/// A product in the library's words. C, which is added, is D.
struct Described {
    product: Owned,
    a: Owned,
    b: Owned,
    d: Owned,
}

impl Described {
    fn new(functions: &Functions, product: &Product, places: &Places) -> Result<Described, String> {
        // SAFETY: numbers go in, a place for the object is given.
        let described = unsafe {
            Owned::new(functions, functions.destroy_product, |object| {
                (functions.create_product)(object, number::COMPUTE_32F, number::R_32F)
            })?
        };
        let set = |attribute, value: i32| described.set(functions, functions.set_product, attribute, value);
        let turned = |layout: &Layout| if layout.transposed { number::OP_T } else { number::OP_N };
        set(number::TRANSA, turned(&product.a))?;
        set(number::TRANSB, turned(&product.b))?;
        if product.biased {
            described.set(functions, functions.set_product, number::EPILOGUE, number::EPILOGUE_BIAS)?;
            set(number::BIAS_DATA_TYPE, number::R_32F)?;
            described.set(functions, functions.set_product, number::BIAS_POINTER, places.bias)?;
        }
        let layout = |layout: &Layout| {
            let numbers = match layout.numbers {
                Numbers::F32 => number::R_32F,
                Numbers::Bf16 => number::R_16BF,
            };
            let [rows, cols, stride] = [layout.rows, layout.cols, layout.stride].map(|n| n as u64);
            // SAFETY: as above.
            Owned::new(functions, functions.destroy_layout, |object| unsafe {
                (functions.create_layout)(object, numbers, rows, cols, stride as i64)
            })
        };
        let (a, b, d) = (layout(&product.a)?, layout(&product.b)?, layout(&product.d)?);
        Ok(Described { product: described, a, b, d })
    }
}

/// A product, for people.
fn words(product: &Product) -> String {
    let Product { a, d, .. } = product;
    let k = if a.transposed { a.rows } else { a.cols };
    format!("{} x {} x {k} of {:?} to {:?}", d.rows, d.cols, a.numbers, d.numbers)
}

/// The open library, for one device.
pub(super) struct CublasLt {
    functions: &'static Functions,
    handle: Handle,
    algorithms: Algorithms,
    /// What it failed at, and its words.
    refused: Mutex<Vec<String>>,
}

impl CublasLt {
    /// Opens it for the device whose context is current.
    ///
    /// # Errors
    /// [`CudaError::Library`] if there is none, [`CudaError::Unfit`] if none starts.
    pub(super) fn open(driver_major: u32) -> Result<CublasLt, CudaError> {
        let without = |refused| {
            CudaError::without(
                "libcublasLt.so",
                "it computes large products",
                "cuBLAS of CUDA 12 or 13 and not newer than the driver (for instance `pip install nvidia-cublas-cu12`, with its \
                 folder in BALLAST_CUDA_LIBRARIES), set BALLAST_CUDA_PRODUCTS=own for slower kernels of Ballast's own",
                refused,
            )
        };
        let functions = Functions::get(Some(driver_major), Functions::starts).map_err(without)?;
        let started = functions.start();
        let handle = started.map_err(|why| CudaError::Driver { what: "start cuBLASLt".into(), why })?;
        Ok(CublasLt { functions, handle, algorithms: Algorithms::default(), refused: Mutex::default() })
    }

    /// Its name and version.
    pub(super) fn name(&self) -> String {
        // SAFETY: takes nothing and returns a number.
        let version = unsafe { (self.functions.version)() };
        format!("cuBLASLt {}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
    }

    /// The algorithm for a product. What it does not have and what it fails at are the same: our own kernels compute it.
    pub(super) fn algorithm(&self, product: &Product, places: &Places) -> Option<Algorithm> {
        let key = key(product, places);
        self.algorithms.known_for(&key).or_else(|| {
            // Before anything is locked that who notes down may ask for.
            let _apart = apart::changing();
            self.algorithms.find(key, || self.search(&key, places), |why| self.note(product, why))
        })
    }

    /// Whether such a product was taken.
    pub(super) fn has_taken(&self, product: &Product, places: &Places) -> bool {
        self.algorithms.is_taken(&key(product, places))
    }

    /// Such a product was taken.
    pub(super) fn took(&self, product: &Product, places: &Places) {
        self.algorithms.took(key(product, places));
    }

    /// Such a product was refused with these words, and is not asked for again.
    pub(super) fn gave_up(&self, product: &Product, places: &Places, why: &str) {
        self.note(product, why);
        self.algorithms.gave_up(key(product, places));
    }

    fn note(&self, product: &Product, why: &str) {
        let refused = format!("{}: {why}", words(product));
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).push(refused);
    }

    /// The products that it failed at, each once, with its words. Those that it has no algorithm for are not among them.
    pub(super) fn refused(&self) -> Vec<String> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn search(&self, (product, [a, b, d, _]): &Key, places: &Places) -> Result<Option<Algorithm>, String> {
        let functions = self.functions;
        let described = Described::new(functions, product, places)?;
        // SAFETY: a place for the object is given.
        let search = Owned::new(functions, functions.destroy_search, |object| unsafe {
            (functions.create_search)(object)
        })?;
        let set = |attribute, value: u32| search.set(functions, functions.set_search, attribute, value);
        let workspace = ROOM.workspace_bytes as u64;
        search.set(functions, functions.set_search, number::MAX_WORKSPACE_BYTES, workspace)?;
        set(number::REDUCTION_SCHEME_MASK, number::REDUCTION_COMPUTE_TYPE)?;
        for (attribute, bytes) in number::MIN_ALIGNMENT_BYTES.into_iter().zip([a, b, d, d]) {
            set(attribute, *bytes)?;
        }
        let (mut found, mut count) = (Found::default(), 0);
        // SAFETY: the objects live through the call, and there is room for the one result that is asked for.
        let status = unsafe {
            let Described { product, a, b, d } = &described;
            let [product, a, b, d] = [product, a, b, d].map(|owned| owned.object);
            (functions.search)(self.handle, product, a, b, d, d, search.object, 1, &mut found, &mut count)
        };
        if status == number::NOT_SUPPORTED {
            return Ok(None);
        }
        functions.result(status)?;
        Ok((count > 0 && found.state == 0).then_some(found.algorithm))
    }

    /// Asks for a product in a stream. The device's context is current.
    ///
    /// # Errors
    /// The library's words.
    ///
    /// # Safety
    /// The places are the device's own, as long as the product's layouts say, and the workspace as [`ROOM`] says.
    pub(super) unsafe fn multiply(
        &self,
        product: &Product,
        places: &Places,
        stream: CUstream,
    ) -> Result<(), String> {
        // Not searched for here: a stream may be noting down.
        let algorithm = self.algorithms.known_for(&key(product, places));
        let algorithm = algorithm.ok_or("no algorithm of cuBLASLt's was found for it")?;
        let Described { product: described, a, b, d } = Described::new(self.functions, product, places)?;
        let (alpha, beta) = (1f32, if product.adds { 1f32 } else { 0f32 });
        let at = |address: u64| address as *mut c_void;
        // SAFETY: passed on from the caller; the factors are read during the call, as the products' pointer mode says.
        self.functions.result(unsafe {
            (self.functions.multiply)(
                self.handle,
                described.object,
                &alpha,
                at(places.a),
                a.object,
                at(places.b),
                b.object,
                &beta,
                at(places.d),
                d.object,
                at(places.d),
                d.object,
                &algorithm,
                at(places.workspace),
                ROOM.workspace_bytes,
                stream,
            )
        })
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        let _apart = apart::changing();
        // SAFETY: made by `open`, and nothing is under way: the device has been waited for.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_as_long_as_the_librarys() {
        assert_eq!(size_of::<Found>(), 96);
    }

    #[test]
    fn a_product_is_told_by_its_sizes() {
        let layout =
            |numbers, rows, cols, transposed| Layout { numbers, rows, cols, stride: rows, transposed };
        let product = Product {
            a: layout(Numbers::Bf16, 40, 64, true),
            b: layout(Numbers::Bf16, 40, 32, false),
            d: layout(Numbers::F32, 64, 32, false),
            adds: false,
            biased: false,
        };
        assert_eq!(words(&product), "64 x 32 x 40 of Bf16 to F32");
    }

    /// What needs no GPU of the library: it takes our descriptions, whose attributes must have the sizes that it knows.
    #[test]
    fn the_library_takes_descriptions() {
        let Ok(functions) = Functions::get(None, |_| Ok(())) else {
            assert!(std::env::var_os("BALLAST_REQUIRE_CUBLASLT").is_none(), "there is no cuBLASLt");
            eprintln!("skipped: there is no cuBLASLt");
            return;
        };
        let layout =
            |rows, cols, stride| Layout { numbers: Numbers::Bf16, rows, cols, stride, transposed: true };
        let d = Layout { numbers: Numbers::F32, transposed: false, ..layout(64, 32, 96) };
        let product = Product { a: layout(40, 64, 40), b: layout(40, 32, 40), d, adds: true, biased: true };
        let places = Places { a: 256, b: 256, d: 256, bias: 256, workspace: 256 };
        Described::new(functions, &product, &places).map(drop).unwrap();
        // SAFETY: a place for the object is given.
        let create = |object: &mut Object| unsafe { (functions.create_search)(object) };
        let search = Owned::new(functions, functions.destroy_search, create).unwrap();
        for (attribute, bytes) in number::MIN_ALIGNMENT_BYTES.into_iter().zip([16u32; 4]) {
            search.set(functions, functions.set_search, attribute, bytes).unwrap();
        }
        search.set(functions, functions.set_search, number::MAX_WORKSPACE_BYTES, 1u64 << 20).unwrap();
        let mask = number::REDUCTION_COMPUTE_TYPE;
        search.set(functions, functions.set_search, number::REDUCTION_SCHEME_MASK, mask).unwrap();
        // A value of another size is refused: the sizes above were looked at.
        assert!(search.set(functions, functions.set_search, number::REDUCTION_SCHEME_MASK, 1u8).is_err());
    }
}

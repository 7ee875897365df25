//! One node through a driver, for comparing kernels with the CPU's.

use crate::{Access, Compiler, Driver, Places, Read, Status, Tag, Unit, Write, encode};
use graph::Literal;
use ops::{OpDef, OpError, Signature};

/// Bytes before and after each buffer that nothing may write.
const GUARD: u64 = 256;
const GUARD_BYTE: u8 = 0x5A;

/// A buffer between guards.
struct Buffer {
    start: u64,
    len: u64,
}

impl Buffer {
    fn at(&self) -> u64 {
        self.start + GUARD
    }
}

/// Runs a node's kernels on `inputs`, each output in the place of an input where `overwrite` has the pair. Outputs start as what no kernel
/// writes, and what lies around them must stay.
pub fn evaluate(
    driver: &mut dyn Driver,
    compiler: &mut dyn Compiler,
    op: &dyn OpDef,
    s: &Signature<'_>,
    inputs: &[Option<&Literal>],
    overwrite: &[(usize, usize)],
) -> Result<Vec<Literal>, String> {
    let kernels = op.cuda(s).map_err(|e: OpError| e.to_string())?;
    let facts = op.facts(s);
    let stream = driver.stream().map_err(|e| e.to_string())?;
    let mut made: Vec<Buffer> = Vec::new();
    let mut buffer = |driver: &mut dyn Driver, bytes: &[u8]| -> Result<u64, String> {
        let len = bytes.len() as u64;
        let start = driver.alloc(len + 2 * GUARD).map_err(|e| e.to_string())?;
        let mut all = vec![GUARD_BYTE; bytes.len() + 2 * GUARD as usize];
        all[GUARD as usize..GUARD as usize + bytes.len()].copy_from_slice(bytes);
        let to = Write { at: start, len: all.len() as u64, tag: Tag(0) };
        driver.upload(&all, to, stream, "a buffer").map_err(|e| e.to_string())?;
        made.push(Buffer { start, len });
        Ok(start + GUARD)
    };
    let mut places = Places { call: 7, ..Places::default() };
    for i in inputs {
        let at = i.map(|l| buffer(driver, l.bytes())).transpose()?;
        places.inputs.push(at.unwrap_or(0));
    }
    for (o, t) in s.outputs.iter().enumerate() {
        let shared = overwrite.iter().chain(&facts.commits).find(|(x, _)| *x == o);
        let len = t.bytes().ok_or("an output of unknown size")? as usize;
        places.outputs.push(match shared {
            Some((_, i)) => places.inputs[*i],
            None => buffer(driver, &vec![0xA5; len])?,
        });
    }
    places.workspace = buffer(driver, &vec![0xA5; kernels.workspace as usize])?;
    places.status = buffer(driver, &[0; Status::BYTES])?;
    for launch in &kernels.launches {
        let unit = Unit::of(launch);
        let image = compiler.compile(&unit).map_err(|e| e.to_string())?;
        let module = driver.load(&image, &unit.name).map_err(|e| e.to_string())?;
        let kernel = driver.function(module, launch.entry).map_err(|e| e.to_string())?;
        let access = Access { what: op.name().to_owned(), ..Access::default() };
        let args = encode(launch, &places);
        driver
            .launch(kernel, launch.grid, launch.block, &args, stream, &access)
            .map_err(|e| e.to_string())?;
    }
    let mut status = [0; Status::BYTES];
    let from = |at, len| Read { at, len, tag: None };
    let done = driver.download(from(places.status, Status::BYTES as u64), &mut status, stream, "the status");
    done.map_err(|e| e.to_string())?;
    let mut result = Status::read(&status).map(|s| s.to_string()).map_or(Ok(Vec::new()), Err);
    for (t, at) in s.outputs.iter().zip(&places.outputs) {
        let mut bytes = vec![0; t.bytes().unwrap_or(0) as usize];
        driver
            .download(from(*at, bytes.len() as u64), &mut bytes, stream, "an output")
            .map_err(|e| e.to_string())?;
        let shape = t.shape.fixed().ok_or("an output of unknown shape")?.iter().map(|d| *d as u64).collect();
        let literal = Literal::new(t.dtype, shape, bytes).map_err(|e| e.to_string())?;
        if let Ok(all) = &mut result {
            all.push(literal);
        }
    }
    for b in &made {
        for at in [b.start, b.at() + b.len] {
            let mut guard = [0; GUARD as usize];
            driver.download(from(at, GUARD), &mut guard, stream, "a guard").map_err(|e| e.to_string())?;
            if guard != [GUARD_BYTE; GUARD as usize] {
                return Err(format!("{} writes outside of its buffers", op.name()));
            }
        }
        driver.free(b.start).map_err(|e| e.to_string())?;
    }
    result
}

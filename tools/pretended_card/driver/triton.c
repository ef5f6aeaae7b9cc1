// The driver's functions that launchers of Triton's kernels call: kernels load, and do nothing.
//
// A kernel's registers are those of the code that ptxas has made. A cubin is an ELF file (elf.h) whose
// section `.nv.info` lists attributes: a format, an attribute, the bytes that follow. Those of
// EIATTR_REGCOUNT are the number of a kernel's symbol and how many registers it has, as `cuobjdump
// --dump-elf` prints them. Memory for spilled registers is not read: none.

#include <elf.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, NO_FILE = 301 };
enum { MAX_THREADS_PER_BLOCK = 0, NUM_REGS = 4 };  // CUfunction_attribute
enum { MOST_THREADS = 1024 };
enum { SIZED_VALUE = 4, REGCOUNT = 0x2f };  // EIFMT_SVAL, EIATTR_REGCOUNT

int cudaDeviceGetAttribute(int *value, int attribute, int device);
int pretended_driver_version(void);

struct kernel {
    int registers;
};

struct attribute {
    uint8_t format, kind;
    uint16_t bytes;
    uint32_t symbol, value;
};

static const Elf64_Shdr *section(const char *image, const char *name) {
    const Elf64_Ehdr *head = (const void *)image;
    const Elf64_Shdr *sections = (const void *)(image + head->e_shoff);
    const char *names = image + sections[head->e_shstrndx].sh_offset;
    for (unsigned i = 0; i < head->e_shnum; i++)
        if (!strcmp(names + sections[i].sh_name, name)) return &sections[i];
    return NULL;
}

static int registers_of(const char *image, const char *name) {
    if (memcmp(image, ELFMAG, SELFMAG)) return 0;  // PTX, which is not compiled yet
    const Elf64_Shdr *facts = section(image, ".nv.info"), *table = section(image, ".symtab");
    const Elf64_Shdr *texts = section(image, ".strtab");
    if (!facts || !table || !texts) return 0;
    const Elf64_Sym *symbols = (const void *)(image + table->sh_offset);
    const char *names = image + texts->sh_offset, *at = image + facts->sh_offset;
    for (const char *end = at + facts->sh_size; at < end;) {
        const struct attribute *fact = (const void *)at;
        int is_sized = fact->format == SIZED_VALUE;
        if (is_sized && fact->kind == REGCOUNT && !strcmp(names + symbols[fact->symbol].st_name, name))
            return (int)fact->value;
        at += offsetof(struct attribute, symbol) + (is_sized ? fact->bytes : 0);
    }
    return 0;
}

// PyTorch's own launcher loads a file (StaticCudaLauncher.cpp), which stays open.
EXPORT int cuModuleLoad(const void **module, const char *path) {
    struct stat found;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &found)) return NO_FILE;
    *module = mmap(NULL, found.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    return SUCCESS;
}
// Triton asks for a module's kernel at once, while it has the code.
EXPORT int cuModuleLoadData(const void **module, const void *image) {
    *module = image;
    return SUCCESS;
}
EXPORT int cuModuleLoadDataEx(const void **module, const void *image) {
    return cuModuleLoadData(module, image);
}
EXPORT int cuModuleGetFunction(struct kernel **kernel, const void *module, const char *name) {
    *kernel = malloc(sizeof **kernel);
    (*kernel)->registers = registers_of(module, name);
    return SUCCESS;
}
EXPORT int cuFuncGetAttribute(int *value, int attribute, const struct kernel *kernel) {
    *value = attribute == NUM_REGS ? kernel->registers : 0;
    if (attribute == MAX_THREADS_PER_BLOCK) *value = MOST_THREADS;
    return SUCCESS;
}

// The driver numbers the attributes of a device as the runtime does (driver_types.h, cuda.h).
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    return cudaDeviceGetAttribute(value, attribute, device);
}
EXPORT int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return SUCCESS;
}
EXPORT int cuDriverGetVersion(int *version) {
    *version = pretended_driver_version();
    return SUCCESS;
}
EXPORT int cuPointerGetAttribute(const void **value, int attribute, const void *pointer) {
    (void)attribute;  // the address on the card
    *value = pointer;
    return SUCCESS;
}

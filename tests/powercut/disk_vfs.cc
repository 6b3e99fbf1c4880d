#include "tests/powercut/disk_vfs.h"

#include <sqlite3.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace scalelab::powercut {

namespace {

constexpr int kShmSlots = 8;  // SQLITE_SHM_NLOCK

// Locks and shared memory of one file, shared by its connections.
struct Sharing {
  int shared = 0;                // number of connections with a lock of any level
  const void* writer = nullptr;  // the connection with RESERVED or a higher lock
  bool pending = false;          // the writer has PENDING, so nobody gets a new SHARED
  std::vector<std::unique_ptr<char[]>> regions;
  int shm_shared[kShmSlots] = {};
  const void* shm_exclusive[kShmSlots] = {};
};

}  // namespace

class DiskVfs::Impl {
 public:
  explicit Impl(Disk& disk) : disk_(disk) {
    before_ = sqlite3_vfs_find(nullptr);
    vfs_.iVersion = 2;
    vfs_.szOsFile = sizeof(File);
    vfs_.mxPathname = 1024;
    vfs_.zName = "powercut";
    vfs_.pAppData = this;
    vfs_.xOpen = Open;
    vfs_.xDelete = Delete;
    vfs_.xAccess = Access;
    vfs_.xFullPathname = FullPathname;
    vfs_.xRandomness = Randomness;
    vfs_.xSleep = [](sqlite3_vfs*, int microseconds) {
      return microseconds;
    };  // there is only one thread, so waiting would have no effect
    vfs_.xCurrentTime = [](sqlite3_vfs*, double* now) { return *now = 2460000.5, SQLITE_OK; };
    vfs_.xCurrentTimeInt64 = [](sqlite3_vfs*, sqlite3_int64* now) {
      return *now = 212544000000000, SQLITE_OK;
    };
    vfs_.xGetLastError = [](sqlite3_vfs*, int, char*) { return 0; };
    sqlite3_vfs_register(&vfs_, 1);
  }
  ~Impl() {
    sqlite3_vfs_unregister(&vfs_);
    sqlite3_vfs_register(before_, 1);
  }

 private:
  struct File {
    sqlite3_file base;
    Impl* impl;
    std::string* path;
    std::shared_ptr<Disk::File>* file;
    std::shared_ptr<Sharing>* sharing;
    int lock;
    bool sync_directory;                 // whether the next sync also syncs the directory
    bool delete_on_close;                // a temporary file
    unsigned shm_shared, shm_exclusive;  // masks of slots
  };

  static Impl& Of(sqlite3_vfs* vfs) { return *static_cast<Impl*>(vfs->pAppData); }
  static File& Of(sqlite3_file* file) { return *reinterpret_cast<File*>(file); }
  static int Code(Disk::Result result, int io_error) {
    if (result == Disk::Result::kOk) return SQLITE_OK;
    return result == Disk::Result::kNoSpace ? SQLITE_FULL : io_error;
  }

  static int Open(sqlite3_vfs* vfs, const char* name, sqlite3_file* out, int flags, int* out_flags) {
    Impl& impl = Of(vfs);
    File& file = Of(out);
    std::memset(static_cast<void*>(&file), 0, sizeof(file));
    const std::string path = name == nullptr ? "/temporary-" + std::to_string(impl.temporary_++) : name;
    std::shared_ptr<Disk::File> found = impl.disk_.Find(path);
    if (impl.disk_.Read() != Disk::Result::kOk) return SQLITE_CANTOPEN;
    const bool create = found == nullptr && (flags & SQLITE_OPEN_CREATE) != 0;
    if (found == nullptr && !create) return SQLITE_CANTOPEN;
    if (create && impl.disk_.Create(path, found) != Disk::Result::kOk) return SQLITE_CANTOPEN;
    static const sqlite3_io_methods kMethods = Methods();
    file.base.pMethods = &kMethods;
    file.impl = &impl;
    file.path = new std::string(path);
    file.file = new std::shared_ptr<Disk::File>(found);
    std::shared_ptr<Sharing>& sharing = impl.sharing_[found->inode];
    if (sharing == nullptr) sharing = std::make_shared<Sharing>();
    file.sharing = new std::shared_ptr<Sharing>(sharing);
    // As in SQLite's os_unix.c: the entry of a journal is synced with the first sync of each connection that may have
    // created it. The process that created the journal may have been killed before.
    file.sync_directory =
        (flags & SQLITE_OPEN_CREATE) != 0 &&
        (flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_SUPER_JOURNAL | SQLITE_OPEN_WAL)) != 0;
    file.delete_on_close = (flags & SQLITE_OPEN_DELETEONCLOSE) != 0;
    if (out_flags != nullptr) *out_flags = flags;
    return SQLITE_OK;
  }
  static int Delete(sqlite3_vfs* vfs, const char* name, int sync_directory) {
    Disk& disk = Of(vfs).disk_;
    if (disk.Find(name) == nullptr) return SQLITE_IOERR_DELETE_NOENT;
    if (disk.Unlink(name) != Disk::Result::kOk) return SQLITE_IOERR_DELETE;
    if (sync_directory == 0) return SQLITE_OK;
    return disk.SyncDirectory() == Disk::Result::kOk ? SQLITE_OK : SQLITE_IOERR_DIR_FSYNC;
  }
  static int Access(sqlite3_vfs* vfs, const char* name, int flags, int* out) {
    const std::shared_ptr<Disk::File> file = Of(vfs).disk_.Find(name);
    *out = file != nullptr && (flags != SQLITE_ACCESS_EXISTS || !file->data.empty()) ? 1 : 0;
    return SQLITE_OK;
  }
  static int FullPathname(sqlite3_vfs*, const char* name, int size, char* out) {
    sqlite3_snprintf(size, out, "%s", name);
    return SQLITE_OK;
  }
  static int Randomness(sqlite3_vfs* vfs, int size, char* out) {
    for (int i = 0; i < size; ++i) out[i] = static_cast<char>(Of(vfs).random_());
    return size;
  }

  static sqlite3_io_methods Methods() {
    sqlite3_io_methods m{};
    m.iVersion = 2;
    m.xClose = Close;
    m.xRead = Read;
    m.xWrite = Write;
    m.xTruncate = [](sqlite3_file* f, sqlite3_int64 size) {
      return Code(Of(f).impl->disk_.Truncate(**Of(f).file, size), SQLITE_IOERR_TRUNCATE);
    };
    m.xSync = Sync;
    m.xFileSize = [](sqlite3_file* f, sqlite3_int64* size) {
      return *size = static_cast<sqlite3_int64>((*Of(f).file)->data.size()), SQLITE_OK;
    };
    m.xLock = Lock;
    m.xUnlock = Unlock;
    m.xCheckReservedLock = [](sqlite3_file* f, int* out) {
      return *out = (*Of(f).sharing)->writer != nullptr ? 1 : 0, SQLITE_OK;
    };
    m.xFileControl = Control;
    m.xSectorSize = [](sqlite3_file*) { return 4096; };
    m.xDeviceCharacteristics = [](sqlite3_file*) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; };
    m.xShmMap = ShmMap;
    m.xShmLock = ShmLock;
    m.xShmBarrier = [](sqlite3_file*) {};
    m.xShmUnmap = [](sqlite3_file* f, int remove) {
      if (remove != 0) (*Of(f).sharing)->regions.clear();
      return SQLITE_OK;
    };
    return m;
  }

  static int Close(sqlite3_file* f) {
    File& file = Of(f);
    Unlock(f, SQLITE_LOCK_NONE);
    if (file.delete_on_close) file.impl->disk_.Unlink(*file.path);
    delete file.sharing;
    delete file.file;
    delete file.path;
    return SQLITE_OK;
  }
  static int Read(sqlite3_file* f, void* out, int size, sqlite3_int64 offset) {
    if (Of(f).impl->disk_.Read() != Disk::Result::kOk) return SQLITE_IOERR_READ;
    const std::string& data = (*Of(f).file)->data;
    const size_t at = std::min(static_cast<size_t>(offset), data.size());
    const size_t there = std::min(static_cast<size_t>(size), data.size() - at);
    std::memcpy(out, data.data() + at, there);
    if (there == static_cast<size_t>(size)) return SQLITE_OK;
    std::memset(static_cast<char*>(out) + there, 0, static_cast<size_t>(size) - there);
    return SQLITE_IOERR_SHORT_READ;
  }
  static int Write(sqlite3_file* f, const void* data, int size, sqlite3_int64 offset) {
    return Code(Of(f).impl->disk_.Write(**Of(f).file, offset, static_cast<const char*>(data),
                                        static_cast<size_t>(size)),
                SQLITE_IOERR_WRITE);
  }
  static int Sync(sqlite3_file* f, int) {
    File& file = Of(f);
    if (file.impl->disk_.Sync(**file.file) != Disk::Result::kOk) return SQLITE_IOERR_FSYNC;
    if (!file.sync_directory) return SQLITE_OK;
    if (file.impl->disk_.SyncDirectory() != Disk::Result::kOk) return SQLITE_IOERR_DIR_FSYNC;
    file.sync_directory = false;
    return SQLITE_OK;
  }
  static int Lock(sqlite3_file* f, int level) {
    File& file = Of(f);
    Sharing& s = **file.sharing;
    if (level <= file.lock) return SQLITE_OK;
    if (level == SQLITE_LOCK_SHARED) {
      if (s.pending) return SQLITE_BUSY;
      ++s.shared;
    } else {
      if (s.writer != nullptr && s.writer != f) return SQLITE_BUSY;
      s.writer = f;
      if (level == SQLITE_LOCK_EXCLUSIVE) {
        s.pending = true;
        if (s.shared > 1) {
          file.lock = SQLITE_LOCK_PENDING;
          return SQLITE_BUSY;
        }
      }
    }
    file.lock = level;
    return SQLITE_OK;
  }
  static int Unlock(sqlite3_file* f, int level) {
    File& file = Of(f);
    Sharing& s = **file.sharing;
    if (level >= file.lock) return SQLITE_OK;
    if (s.writer == f) {
      s.writer = nullptr;
      s.pending = false;
    }
    if (level == SQLITE_LOCK_NONE) --s.shared;
    file.lock = level;
    return SQLITE_OK;
  }
  static int Control(sqlite3_file* f, int operation, void* argument) {
    File& file = Of(f);
    if (operation != SQLITE_FCNTL_HAS_MOVED) return SQLITE_NOTFOUND;
    *static_cast<int*>(argument) = file.impl->disk_.Find(*file.path) != *file.file ? 1 : 0;
    return SQLITE_OK;
  }
  static int ShmMap(sqlite3_file* f, int region, int size, int extend, void volatile** out) {
    std::vector<std::unique_ptr<char[]>>& regions = (*Of(f).sharing)->regions;
    while (static_cast<size_t>(region) >= regions.size()) {
      if (extend == 0) return *out = nullptr, SQLITE_OK;
      regions.push_back(std::make_unique<char[]>(static_cast<size_t>(size)));
    }
    *out = regions[static_cast<size_t>(region)].get();
    return SQLITE_OK;
  }
  static int ShmLock(sqlite3_file* f, int first, int count, int flags) {
    File& file = Of(f);
    Sharing& s = **file.sharing;
    const bool exclusive = (flags & SQLITE_SHM_EXCLUSIVE) != 0;
    for (int i = first; (flags & SQLITE_SHM_LOCK) != 0 && i < first + count; ++i) {
      const bool mine = (file.shm_shared >> i & 1) != 0;
      if (s.shm_exclusive[i] != nullptr && s.shm_exclusive[i] != f) return SQLITE_BUSY;
      if (exclusive && s.shm_shared[i] > (mine ? 1 : 0)) return SQLITE_BUSY;
    }
    for (int i = first; i < first + count; ++i) {
      const unsigned bit = 1u << i;
      if ((flags & SQLITE_SHM_LOCK) != 0) {
        if (exclusive) {
          s.shm_exclusive[i] = f;
          file.shm_exclusive |= bit;
        } else if ((file.shm_shared & bit) == 0) {
          ++s.shm_shared[i];
          file.shm_shared |= bit;
        }
        continue;
      }
      if (exclusive && (file.shm_exclusive & bit) != 0) {
        s.shm_exclusive[i] = nullptr;
        file.shm_exclusive &= ~bit;
      } else if (!exclusive && (file.shm_shared & bit) != 0) {
        --s.shm_shared[i];
        file.shm_shared &= ~bit;
      }
    }
    return SQLITE_OK;
  }

  Disk& disk_;
  sqlite3_vfs* before_;
  sqlite3_vfs vfs_{};
  std::map<int, std::shared_ptr<Sharing>> sharing_;  // by inode
  int temporary_ = 0;
  std::mt19937_64 random_{1};
};

DiskVfs::DiskVfs(Disk& disk) : impl_(std::make_unique<Impl>(disk)) {}
DiskVfs::~DiskVfs() = default;

}  // namespace scalelab::powercut

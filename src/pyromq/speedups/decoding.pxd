cdef struct Record:  # addresses and sizes of the parts of an intact record
    const char* at
    Py_ssize_t size
    const char* born
    Py_ssize_t born_size
    const char* stored  # the store time, followed by the store address
    Py_ssize_t store_size
    const char* tried  # reconsume times, prepared offset and body size
    const char* body
    Py_ssize_t body_size
    const char* topic
    Py_ssize_t topic_size
    const char* properties
    Py_ssize_t properties_size

cdef bint find_record(const char* p, Py_ssize_t left, bint check_crc, Record* record) noexcept nogil

// Nothing but what PrdBuild.cmake puts before every library.
